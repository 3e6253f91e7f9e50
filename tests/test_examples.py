import difflib
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "segment.py": ["timm", "segmentation_models_pytorch", "torchmetrics"],
    "detect.py": ["torchvision", "torchmetrics", "faster_coco_eval"],
    "detect_yolo.py": ["ultralytics"],  # AGPL: never a dependency of ours
}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs(example, tmp_path, monkeypatch):
    for package in NEEDS.get(example, ()):
        pytest.importorskip(package, reason=f"{example} is for {package}, which is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


def test_after_is_before_with_five_lines_added():
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("before.py", "after.py"))
    diff = list(difflib.ndiff(before, after))
    removed = [line for line in diff if line.startswith("- ")]
    added = [line for line in diff if line.startswith("+ ") and line.strip("+ ")]
    assert [line[:5] for line in removed] == ['- """'], "only the title changes"
    assert len(added) - len(removed) == 5
