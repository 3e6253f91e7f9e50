import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import repopt
import repopt.export.exporting
from exported import hostile_archive, onnx_metadata
from made_up import small_job
from repopt.cli import main
from repopt.data import EvalBatches, load_data
from repopt.export import FORMATS, export_run
from repopt.export.formats import METADATA
from repopt.files import read_sealed, write_sealed
from repopt.quantize import Int8, QuantizeJob, quantize_run
from repopt.quantize.onnx_files import Agreement, compare, onnx_runner
from repopt.quantize.programs import load_program
from repopt.train.runs import load_run
from repopt.train.training import train_run
from train.program import run as program

FLOAT = ["onnx", "torch-export", "safetensors"]
OLD_RUN = Path(__file__).parents[1] / "train" / "old_runs" / "finished_sgd"


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy to write into."""
    return shutil.copytree(trained_run, tmp_path / "run")


def validation(run, count, *, normalized=True):
    config, data = load_run(run).config, load_data("digits")
    form = {"mean": config["mean"], "std": config["std"]} if normalized else {"mean": [0.0] * 3, "std": [1.0] * 3}
    batches = EvalBatches(data.val, batch_size=count, size=config["size"], device=torch.device("cpu"), **form)
    return next(iter(batches))[0]


def outputs(path, images):
    """Of an exported model, loaded as its user would."""
    if path.suffix == ".onnx":
        return onnx_runner(path)(images)
    return (
        torch.export.load(path).module()(images) if path.suffix == ".pt2" else repopt.create_model(path).eval()(images)
    )


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FLOAT)
def test_what_is_exported_computes_what_the_run_computes(run, name):
    before = files(run)
    exported = export_run(run, name)
    assert exported.path == run / FORMATS[name].name
    assert exported.agreement.difference <= 1e-4
    assert exported.agreement.top1 == 1
    assert (exported.agreement.images, exported.batch_sizes) == (72, (1, 7, 64))
    assert exported.input == "normalized"
    model = load_run(run).model
    for size in (1, 7, 64):
        images = validation(run, size)
        assert compare([model(images)], [outputs(exported.path, images)]).difference <= 1e-4
    added = files(run).keys() - before.keys()
    assert added == set(exported.path.iterdir() if exported.path.is_dir() else [exported.path])
    assert exported.bytes == sum(path.stat().st_size for path in added)


@pytest.mark.parametrize("name", ["onnx", "torch-export"])
def test_the_normalization_can_be_inside(run, name):
    exported = export_run(run, name, normalize=True)
    assert exported.input == "0..1"
    pixels = validation(run, 30, normalized=False)
    assert (pixels.min(), pixels.max()) == (0, 1)
    wanted = load_run(run).model(validation(run, 30))
    assert compare([wanted], [outputs(exported.path, pixels)]).difference <= 1e-4


def test_the_metadata_says_what_a_user_must_know(run):
    archive = {METADATA: ""}
    torch.export.load(export_run(run, "torch-export").path, extra_files=archive)
    written = onnx_metadata(export_run(run, "onnx", normalize=True).path)
    config = load_run(run).config
    for metadata, expected in (
        (
            {
                name: value if name in ("model", "input", "repopt") else json.loads(value)
                for name, value in written.items()
            },
            "0..1",
        ),
        (json.loads(archive[METADATA]), "normalized"),
        (json.loads((export_run(run, "safetensors").path / "config.json").read_text()), "normalized"),
    ):
        assert metadata["input"] == expected
        assert metadata["classes"] == list("0123456789")
        assert metadata["recipe"] == json.loads((run / "recipe.json").read_text())
        assert metadata["options"] == {**config["options"], "deploy": True}
        for name in ("model", "mean", "std", "size"):
            assert metadata[name] == config[name]


def test_the_size_in_the_metadata_is_that_of_the_images_which_the_file_takes(tmp_path):
    train_run(small_job(size=16, eval_size=24), tmp_path / "run", device="cpu", quiet=True)
    path = export_run(tmp_path / "run", "onnx").path
    size = int(onnx_metadata(path)["size"])
    assert size == 24
    assert outputs(path, torch.zeros(7, 3, size, size)).shape == (7, 4)


def test_an_exported_folder_is_the_deploy_form(run):
    path = export_run(run, "safetensors", run / "elsewhere" / "model").path
    model = repopt.create_model(str(path))
    assert model.training
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert isinstance(model.stage1[0].rbr_reparam, nn.Conv2d)


def test_an_int8_program_is_exported_with_the_normalization_inside(run):
    """The one that `repopt quantize` left in the run, not another."""
    setting = Int8(calibrator="minmax", weights="tensor", images=50)
    left = load_program(quantize_run(run, QuantizeJob(setting=setting, limit=100), out=run / "mine").file)
    exported = export_run(run, "onnx-int8", normalize=True, int8=run / "mine")
    assert exported.agreement.top1 >= 0.99
    assert exported.agreement.images == 360
    made = json.loads(onnx_metadata(exported.path)["int8"])
    assert (made["method"], made["weights"], made["calibrator"], made["images"]) == ("ptq", "tensor", "minmax", 50)
    (run / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"empty' holds no program.safetensors: give --int8 a folder that `repopt quantize"
    ):
        export_run(run, "onnx-int8", run / "other.onnx", int8=run / "empty")
    with pytest.raises(ValueError, match="a folder of INT8 is for the format onnx-int8, not onnx"):
        export_run(run, "onnx", run / "other.onnx", int8=run / "mine")
    trained, _ = read_sealed(run / "model.safetensors")
    write_sealed(run / "model.safetensors", {name: 0.9 * weight for name, weight in trained.items()})  # trained on
    with pytest.raises(ValueError, match=r"mine' holds INT8 of other weights than .* has now: quantize the run again"):
        export_run(run, "onnx-int8", run / "other.onnx", int8=run / "mine")
    write_sealed(run / "model.safetensors", trained)
    assert (
        compare([left(validation(run, 99))], [outputs(exported.path, validation(run, 99, normalized=False))]).top1
        >= 0.98
    )
    written = onnx.load(exported.path).graph
    used = {node.input[1] for node in written.node if node.op_type == "DequantizeLinear"}
    scales = [tensor for tensor in written.initializer if tensor.name in used]
    assert scales
    assert not any(tensor.dims for tensor in scales)  # one scale a tensor, as it was left
    stored = {tensor.name for tensor in written.initializer}
    zeros = [node.input[2] for node in written.node if node.op_type == "DequantizeLinear" and node.input[0] in stored]
    assert len(set(zeros)) == len(zeros) > 1  # ONNX Runtime fails on shared ones where there is no VNNI
    # as earlier versions left it
    batch = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "strict": True}
    torch.export.save(torch.export.export(left, (validation(run, 2),), **batch), run / "mine" / "program.pt2")
    (run / "mine" / "program.safetensors").unlink()
    again = export_run(run, "onnx-int8", run / "other.onnx", int8=run / "mine", images=30, trust=True)
    assert again.agreement.images == 30


def test_code_in_a_run_folder_is_not_executed(run, capfd):
    """The archive of an INT8 program, as earlier versions wrote it, can hold any pickle."""
    shutil.copytree(OLD_RUN / "int8", run / "int8")
    _, trap = hostile_archive(run / "int8" / "program.pt2")
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(run), "--format", "onnx-int8"])
    assert not trap.exists()
    said = capfd.readouterr().err
    assert "program.pt2' was written by an earlier version and can execute code" in said
    assert said.count("\n") == 1
    assert not (run / "model-int8.onnx").exists()


@pytest.mark.slow
def test_without_an_int8_program_one_is_calibrated(run):
    """A file of ONNX Runtime, which `repopt quantize` writes to the same folder, is none."""
    quantize_run(run, QuantizeJob(setting=Int8(backend="onnxruntime", images=50), limit=100))
    exported = export_run(run, "onnx-int8", images=100)
    assert exported.path == run / "model-int8.onnx"
    assert exported.agreement.top1 >= 0.99
    assert exported.batch_sizes == (1, 7, 28, 64)
    operators = [node.op_type for node in onnx.load(exported.path).graph.node]
    assert operators.count("Conv") == 5
    assert "QuantizeLinear" in operators


@pytest.mark.parametrize("name", ["torch-export", "safetensors"])
def test_a_model_that_does_not_agree_is_not_kept(run, name, monkeypatch):
    def altered(model):
        other = repopt.models.deploy(model)
        other.linear.weight.data *= 1.001
        return other

    monkeypatch.setattr(repopt.export.exporting, "as_deployed", altered)
    before = files(run)
    with pytest.raises(
        RuntimeError, match=r"not kept: on 72 images .* the logits are up to .* off; at most 1e-04 is allowed"
    ):
        export_run(run, name)
    assert files(run) == before
    assert not list(run.glob(".unfinished*"))


def test_too_few_classes_in_common_are_not_enough():
    agreement = compare([torch.eye(4)], [torch.eye(4)[[0, 1, 1, 1]]])
    with pytest.raises(RuntimeError, match=r"INT8 program .* 50\.00% of the classes are the same.* at least 99% must"):
        FORMATS["onnx-int8"].check(agreement)
    with pytest.raises(RuntimeError):
        FORMATS["onnx"].check(dataclasses.replace(agreement, difference=float("nan")))


def test_one_image_may_differ_however_few_there_are():
    check = FORMATS["onnx-int8"].check
    for images, others in ((21, 1), (100, 1), (1000, 10)):
        check(Agreement(difference=0.1, top1=1 - others / images, images=images))
        with pytest.raises(RuntimeError, match="does not agree"):
            check(Agreement(difference=0.1, top1=1 - (others + 1) / images, images=images))


BAD = {
    "a number as format": ({"format": 3}, "there is no format 3: choose onnx, onnx-int8"),
    "no such format": ({"format": "onx"}, "there is no format 'onx': did you mean onnx"),
    "opset": ({"opset": 99}, "the opset must be 18 to 23, not 99"),
    "opset of no ONNX": ({"format": "torch-export", "opset": 20}, "leave --opset out"),
    "normalization in weights": ({"format": "safetensors", "normalize": True}, "leave --normalize out"),
    "no images": ({"images": 0}, "at least 1 image is compared on, not 0"),
    "other suffix": ({"out": "model.bin"}, "'model.bin' must end in .onnx"),
    "other classes": ({"data": "fake:64,4,32"}, "has 4 classes and the run 10"),
    "no such data": ({"data": "mnist"}, "'mnist' is not a source of data"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(trained_run, case):
    options, words = BAD[case]
    before = files(trained_run)
    with pytest.raises(ValueError, match=words):
        export_run(trained_run, **{"format": "onnx", **options})
    assert files(trained_run) == before


def test_a_run_that_lacks_something_is_not_exported(run, monkeypatch):
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "data": "folder:gone"}))
    with pytest.raises(ValueError, match=r"the run's own data cannot be loaded \(.*gone.*\): give --data"):
        export_run(run, "safetensors")
    assert export_run(run, "safetensors", data="digits").agreement.top1 == 1
    (run / "recipe.json").rename(run / "kept.json")
    with pytest.raises(ValueError, match=r"is not a run folder: it has no recipe.json"):
        export_run(run, "torch-export")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime, which is not installed: pip install -e '\.\[int8\]'"):
        export_run(run, "onnx")


def test_the_program_says_what_it_wrote(run, tmp_path):
    code, said = program("export", run, "--format", "onnx", "--normalize", log=tmp_path / "log", env={"COLUMNS": "80"})
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == f"{run / 'model.onnx'}: {(run / 'model.onnx').stat().st_size:,} bytes"
    assert [line.split()[0] for line in lines[1:]] == ["takes", "checked", "logits", "top-1"]
    assert "batch x 3 x 32 x 32 float32, 0..1" in lines[1]
    assert "on 72 images in batches of 1, 7 and 64" in lines[2]
    assert max(map(len, lines[1:])) <= 80


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("export . --out taken.onnx", "'taken.onnx' already exists: remove it, or give another path (--out)"),
        ("export unfinished", "'unfinished' is not finished: it has no model.safetensors"),
        ("export . --opset 99", "the opset must be 18 to 23, not 99"),
        ("export . --data fake:64,4,32", "'fake:64,4,32' has 4 classes and the run 10"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run, words, expected, tmp_path):
    (run / "taken.onnx").write_text("mine")
    (run / "unfinished").mkdir()
    shutil.copy(run / "recipe.json", run / "unfinished")
    before = files(run)
    args = [str(run / word) if word in (".", "unfinished", "taken.onnx") else word for word in words.split()]
    code, said = program(*args, log=tmp_path / "log")
    assert code == 2, said
    assert expected in said.replace(f"{run}{os.sep}", "")
    assert len(said.strip().splitlines()) == 1
    assert files(run) == before
