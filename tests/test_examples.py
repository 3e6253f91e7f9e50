import difflib
import runpy
import sys
from pathlib import Path

import pytest

from scenes import cityscapes_folder, coco_folder

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {
    "segment.py": ["timm", "segmentation_models_pytorch", "torchmetrics"],
    "detect.py": ["torchvision", "torchmetrics", "faster_coco_eval"],
    "detect_yolo.py": ["ultralytics"],  # AGPL: never a dependency of ours
}


def run(example, monkeypatch, *arguments):
    for package in NEEDS.get(example, ()):
        pytest.importorskip(package, reason=f"{example} is for {package}, which is not installed")
    monkeypatch.setattr(sys, "argv", [example, *arguments])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(example, monkeypatch)


def test_detect_reads_coco_and_segment_reads_pairs_of_files(tmp_path, monkeypatch, capsys):
    coco, cityscapes = coco_folder(tmp_path), cityscapes_folder(tmp_path, left=0, right=1)
    annotations = str(coco / "annotations" / "instances_train2017.json")
    run("detect.py", monkeypatch, "--images", str(coco / "train2017"), "--annotations", annotations, "--epochs", "1")
    images, masks = (f"{cityscapes}/{folder}/*/*/*.png" for folder in ("leftImg8bit", "gtFine"))
    run("segment.py", monkeypatch, "--images", images, "--masks", masks, "--epochs", "1")
    printed = capsys.readouterr().out
    assert "AP " in printed
    assert "mIoU " in printed


@pytest.mark.parametrize("example", NEEDS)
def test_an_example_of_dense_prediction_stays_short(example):
    assert len((EXAMPLES / example).read_text().splitlines()) < 80


def test_after_is_before_with_five_lines_added():
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("before.py", "after.py"))
    diff = list(difflib.ndiff(before, after))
    removed = [line for line in diff if line.startswith("- ")]
    added = [line for line in diff if line.startswith("+ ") and line.strip("+ ")]
    assert [line[:5] for line in removed] == ['- """'], "only the title changes"
    assert len(added) - len(removed) == 5
