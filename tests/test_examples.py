import difflib
import json
import runpy
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import repopt
from scenes import cityscapes_folder, coco_folder, write_annotations

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
    coco, cityscapes = coco_folder(tmp_path), cityscapes_folder(tmp_path, left=0, right=1, count=5)
    read = json.loads((coco / "annotations" / "instances_train2017.json").read_text())
    for each in read["annotations"]:
        each["bbox"] = [40, 20, 30, 10]  # reaches over the border, and counts all the same
    write_annotations(coco, read)
    run("detect.py", monkeypatch, "--coco", str(coco), "--epochs", "1")
    images, masks = (f"{cityscapes}/{folder}/*/*/*.png" for folder in ("leftImg8bit", "gtFine"))
    run("segment.py", monkeypatch, "--images", images, "--masks", masks, "--epochs", "1")
    printed = capsys.readouterr().out
    assert "AP 0." in printed  # it is -1 where nothing is to be found
    assert "mIoU " in printed


@pytest.mark.parametrize("example", ["segment.py", "detect.py"])
def test_an_example_normalizes_images_as_the_run_did_that_it_goes_on_from(example, tmp_path, monkeypatch):
    seen = []

    def look(module, inputs):
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            seen.append(inputs[0].abs().max().item())

    model = repopt.create_model("repopt_vgg_nano")
    repopt.plan(model, scales="ones").init_()  # or it would look untrained
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    about = {"model": "repopt_vgg_nano", "options": {}, "mean": [0.5, 0.5, 0.5], "std": [1e6, 1e6, 1e6]}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with register_module_forward_pre_hook(look):
        run(example, monkeypatch, "--backbone", str(tmp_path), "--epochs", "1")
    assert max(seen) < 1e-5


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
