"""From a run to INT8: by every method and backend, and by the real program."""

import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch

from exported import small_run
from repopt.cli import main
from repopt.data import EvalBatches
from repopt.models import RepOptVGG, deploy
from repopt.quantize import Int8, QuantizeJob, Timing, quantize_run, timing
from repopt.quantize.calibration import calibration_batches
from repopt.quantize.ort import OnnxModel, post_training_onnx
from repopt.quantize.programs import load_program
from repopt.quantize.qat import qat_recipe
from repopt.quantize.quantizing import shaped
from repopt.quantize.setting import CALIBRATORS
from repopt.report import write_report
from repopt.train.job import Job
from repopt.train.recipe import demo
from repopt.train.runs import image_format, load_run, run_data, run_recipe
from repopt.train.training import train_run
from train.program import run as program


@pytest.fixture(scope="module")
def run(trained_run):
    return trained_run


@pytest.fixture(scope="module")
def by_the_program(run, tmp_path_factory):
    """A copy of the run that the real program has quantized, and what it said."""
    folder = tmp_path_factory.mktemp("quantized")
    copied = shutil.copytree(run, folder / "run")
    words = ["--no-speed", "--layers", "--trim", "0.1", "--limit", "100", "--device", "cpu"]
    code, said = program("quantize", copied, *words, "--csv", folder / "int8.csv", log=folder / "log")
    assert code == 0, said
    return copied, said


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Trained with a norm behind every convolution, as a RepOpt-VGG is."""
    return small_run(tmp_path_factory.mktemp("runs") / "sgd", method="sgd", epochs=6)


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("trained", "method", "backend", "form"),
    [
        ("run", "ptq", "x86", "deployed"),
        ("run", "ptq", "onnxruntime", "deployed"),
        ("run", "qat", "x86", "deployed"),
        pytest.param("plain", "qat", "onnxruntime", "trained", marks=slow),
        pytest.param("run", "ptq", "x86", "trained", marks=slow),
        pytest.param("run", "qat", "x86", "plain", marks=slow),
        pytest.param("plain", "ptq", "x86", "deployed", marks=slow),
        pytest.param("plain", "qat", "x86", "trained", marks=slow),
    ],
)
def test_a_trained_run_keeps_its_accuracy(request, tmp_path, trained, method, backend, form):
    """And both models are evaluated on the same images, the INT8 one as it lies in its file."""
    run = request.getfixturevalue(trained)
    asked = form if (trained, form) in (("run", "trained"), ("run", "plain")) else "auto"
    job = QuantizeJob(method=method, setting=Int8(backend=backend, images=200), form=asked, epochs=1, lr=0.01)
    done = quantize_run(run, job, out=tmp_path / "int8", quiet=True)
    assert done.record["form"] == form
    record = json.loads((tmp_path / "int8" / "quantized.json").read_text())
    assert {**done.record, "layers": []} == record
    assert record["float_accuracy"] > 60
    assert record["drop"] < 3
    assert record["int8_bytes"] == done.file.stat().st_size
    if backend == "onnxruntime":  # a .pt2 archive of a net as small as this is mostly its graph
        assert record["int8_bytes"] < 0.6 * record["float_bytes"]
    before = load_run(run)
    model = OnnxModel(done.file) if backend == "onnxruntime" else load_program(done.file)
    images = calibration_batches(before, run_data(run), 100)
    with torch.no_grad():
        same = [(model(batch).argmax(1) == before.model(batch).argmax(1)).double().mean() for batch in images]
    assert torch.stack(same).mean() > (0.95 if method == "ptq" else 0.8)


def test_the_record_names_the_images_that_there_were_and_the_epochs_of_the_weights(run, tmp_path):
    """Not those that were asked for, nor those that a run is being lengthened to."""
    copied = shutil.copytree(run, tmp_path / "run")
    trained = json.loads((copied / "summary.json").read_text())["epochs"]
    recipe = json.loads((copied / "recipe.json").read_text())
    (copied / "recipe.json").write_text(json.dumps({**recipe, "epochs": trained + 20}))
    job = QuantizeJob(setting=Int8(backend="onnxruntime", images=1_000), limit=40)
    record = quantize_run(copied, job, quiet=True).record
    assert (record["images"], record["epochs"]) == (len(run_data(run, limit=40).train), trained)
    assert record["images"] < 1_000


@pytest.mark.slow
def test_the_two_backends_agree(run, tmp_path):
    accuracies = [
        quantize_run(run, QuantizeJob(setting=Int8(backend=backend)), out=tmp_path / backend).record["int8_accuracy"]
        for backend in ("x86", "onnxruntime")
    ]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=1.5)


def test_a_calibrator_decides_the_ranges(run, tmp_path):
    """That of min-max holds all that was seen; percentile cuts off."""
    trained, ranges = load_run(run), []
    images = calibration_batches(trained, run_data(run), 50)
    for calibrator in CALIBRATORS["onnxruntime"]:
        setting = Int8(backend="onnxruntime", calibrator=calibrator)
        post_training_onnx(deploy(trained.model), images, setting, tmp_path / "int8.onnx")
        stored = {each.name: each for each in onnx.load(tmp_path / "int8.onnx").graph.initializer}
        steps = {name: onnx.numpy_helper.to_array(each) for name, each in stored.items() if name.endswith("_scale")}
        ranges.append([float(step) for _, step in sorted(steps.items()) if step.ndim == 0])
    minmax, percentile = map(sum, ranges)
    assert minmax > percentile > 0


def test_calibration_images_that_do_not_fill_their_last_batch_are_all_used(run, tmp_path):
    """By a histogram as well, for which ONNX Runtime takes batches of one size."""
    trained = load_run(run)
    (images,) = calibration_batches(trained, run_data(run), 45)
    files = [tmp_path / "equal.onnx", tmp_path / "unequal.onnx"]
    for file, batches in zip(files, [torch.split(images, 9), torch.split(images, 20)], strict=True):
        setting = Int8(backend="onnxruntime", calibrator="percentile")
        post_training_onnx(deploy(trained.model), batches, setting, file)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    with torch.no_grad():
        torch.testing.assert_close(OnnxModel(files[0])(images), OnnxModel(files[1])(images))


def test_the_forms_of_a_repvgg_compute_the_same(run):
    trained = load_run(run)
    images = calibration_batches(trained, run_data(run), 100)
    expected = trained.model(images[0])
    for form in ("deployed", "trained", "plain"):
        net = shaped(trained.model, form, images).eval()
        torch.testing.assert_close(net(images[0]), expected, rtol=1e-3, atol=1e-4)
    assert isinstance(shaped(trained.model, "plain", images), RepOptVGG)
    with pytest.raises(ValueError, match="the form plain gives a converted RepVGG norms again; this is a RepOptVGG"):
        shaped(shaped(trained.model, "plain", images), "plain", images)


def test_calibration_sees_training_images_of_every_class_and_always_the_same(run):
    trained, data = load_run(run), run_data(run)
    first, again = (torch.cat(calibration_batches(trained, data, 100)) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    everything = next(
        iter(EvalBatches(data.train, batch_size=10**6, device=torch.device("cpu"), **image_format(trained)))
    )
    labels = [everything[1][(everything[0] == image).flatten(1).all(1)][0].item() for image in first]
    assert [labels.count(digit) for digit in range(10)] == [10] * 10
    assert len(torch.cat(calibration_batches(trained, data, 10**6))) == len(data.train)


@pytest.mark.slow
def test_layers_are_measured_as_the_model_is_quantized(run, tmp_path):
    costs = [
        quantize_run(run, QuantizeJob(setting=Int8(weights=weights), layers=True), out=tmp_path / weights).layers
        for weights in ("channel", "tensor")
    ]
    assert sum(cost.snr_alone for cost in costs[0]) > sum(cost.snr_alone for cost in costs[1])


def test_what_is_for_calibration_alone_is_refused_by_qat():
    with pytest.raises(ValueError, match="layers are measured for PTQ by x86"):
        QuantizeJob(method="qat", layers=True)
    with pytest.raises(ValueError, match="leave --trim out"):
        QuantizeJob(method="qat", setting=Int8(trim=0.1))


def test_a_speed_that_cannot_be_measured_takes_nothing_from_the_model(run, tmp_path, monkeypatch):
    def fails(*args, **options):
        return SimpleNamespace(returncode=1, stderr="no compiler\n", stdout="")

    monkeypatch.setattr(timing.subprocess, "run", fails)
    job = QuantizeJob(setting=Int8(backend="onnxruntime", images=50), limit=50, timing=Timing())
    done = quantize_run(run, job, out=tmp_path / "int8")
    assert done.trouble == "the speed could not be measured: no compiler"
    assert done.file.exists()
    assert json.loads((tmp_path / "int8" / "quantized.json").read_text())["int8"] is None
    with pytest.raises(ValueError, match="threads must be at least 1 while speeds are measured, not 0"):
        Timing(threads=0)


def test_a_cpu_that_dies_of_its_own_promises_is_asked_for_less(run, monkeypatch):
    """As virtual machines do that promise AMX."""
    asked = []

    def dies_with_amx(call, env, **options):
        asked.append(env.get("ONEDNN_MAX_CPU_ISA"))
        speeds = json.dumps(dict.fromkeys(timing.SPEEDS, 1.0))
        return SimpleNamespace(returncode=0 if asked[-1] else -signal.SIGILL, stdout=speeds, stderr="")

    monkeypatch.setattr(timing.subprocess, "run", dies_with_amx)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    found = timing.measure_speed(run, run / "program.safetensors", Timing(size=32))
    assert asked == [None, "AVX512_CORE_VNNI"]
    assert found["instructions"] == "AVX512_CORE_VNNI"


def test_the_process_that_measures_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "repopt.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"the speed could not be measured: .*'nowhere'"):
        timing.measure_speed(Path("nowhere"), Path("nowhere.onnx"), Timing(size=32))


@pytest.mark.parametrize("method", ["ptq", "qat"])
def test_what_a_file_cannot_hold_is_said_before_any_work(method, tmp_path, capsys):
    recipe = replace(demo(), epochs=1, warmup_epochs=0, batch_size=16)
    job = Job(method="sgd", model="other_nets:soft", data="fake:32,4,16", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)
    with pytest.raises(ValueError, match=r"an INT8 file cannot hold aten.softplus.default: give --backend onnxruntime"):
        quantize_run(tmp_path / "run", QuantizeJob(method=method), trust=True)
    assert "evaluating" not in capsys.readouterr().err


def test_qat_is_the_runs_own_recipe_short_and_slow(run):
    recipe = run_recipe(run)
    short = qat_recipe(recipe)
    assert (short.epochs, short.lr, short.warmup_epochs) == (10, pytest.approx(recipe.lr / 100), 0)
    assert (short.batch_size, short.weight_decay, short.flip) == (recipe.batch_size, recipe.weight_decay, recipe.flip)
    assert qat_recipe(recipe, epochs=3, lr=0.5).lr == 0.5


def test_the_command_says_what_int8_cost_and_writes_it(by_the_program):
    run, said = by_the_program
    assert "repvgg_nano, deployed form: PTQ (histogram) for x86, per-channel weights" in said
    for line in (
        "\nits images trimmed by 10%, on ",
        "float ",
        "INT8 ",
        "stage3.0.rbr_reparam",
        f"written: {run}/int8/program.safetensors",
    ):
        assert line in said
    assert "Failed to load" not in said
    record = json.loads((run / "int8" / "quantized.json").read_text())
    assert [cost["layer"] for cost in record["layers"]][5:] == ["linear", "all weights", "all inputs"]
    assert record["trim"] == 0.1
    assert (run.parent / "int8.csv").read_text().count("\n") == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["x86", "onnxruntime"])
def test_float_and_int8_are_timed_in_one_run(run, tmp_path, backend):
    words = ["--backend", backend, "--speed-batch", "8", "--device", "cpu"]
    size = 48 if backend == "x86" else 32  # an ONNX file's is its own
    words += ["--speed-size", size] if backend == "x86" else []
    code, said = program("quantize", run, "--out", tmp_path / "int8", *words, log=tmp_path / "log")
    assert code == 0, said
    assert f"on this CPU, 1 thread, batches of 8, {size}x{size}" in said
    record = json.loads((tmp_path / "int8" / "quantized.json").read_text())
    assert all(record[way] > 0 for way in ("float_eager", "float_compiled", "int8"))


def test_what_was_quantized_is_in_the_report(by_the_program, tmp_path):
    run, _ = by_the_program
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "<h2>INT8</h2>" in page
    assert "stage3.0.rbr_reparam" in page


MISTAKES = {
    "no run": ("nowhere", "is not a run folder: it has no model.safetensors"),
    "other classes": (". --data fake:64,4,32", "'fake:64,4,32' has 4 classes and the run 10: give data like"),
    "no images": (". --images 0", "calibration needs at least one image, not 0"),
    "a calibrator of the other backend": (". --calibrator percentile", "x86 has no calibrator 'percentile'"),
    "an ONNX file at another size": (". --backend onnxruntime --speed-size 64", "takes images of the run's own size"),
    "no images left": (". --limit 0", "repopt: limit must be at least 1, not 0"),
    "no threads": (". --threads 0", "threads must be at least 1 while speeds are measured, not 0"),
    "no data": (". --data folder:nowhere", "nowhere"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(run, tmp_path, capfd, monkeypatch, mistake):
    words, sentence = MISTAKES[mistake]
    monkeypatch.chdir(run)
    before = sorted(run.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(["quantize", *words.split()])
    assert stop.value.code == 2
    said = capfd.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert sorted(run.rglob("*")) == before


def test_a_folder_that_is_there_is_not_overwritten(run, tmp_path):
    (tmp_path / "int8").mkdir()
    with pytest.raises(ValueError, match=r"int8' already exists: give another --out"):
        quantize_run(run, out=tmp_path / "int8")
    assert not list((tmp_path / "int8").iterdir())


def test_a_package_that_is_not_installed_is_named_with_its_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[int8\]'"):
        quantize_run(run, QuantizeJob(setting=Int8(backend="onnxruntime")), out=tmp_path / "int8")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[int8\]'"):
        quantize_run(run, out=tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
