"""The training commands, run as the real program."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from broken import without_int8
from repopt.cli import main
from repopt.plans.scales import Scales
from train.program import heard as repopt

QUICK = ["--epochs", "2", "--warmup-epochs", "1", "--batch-size", "32", "--quiet", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A search, and a training with its scales."""
    path = tmp_path_factory.mktemp("runs")
    done = repopt("search", "--data", "digits", "--limit", 256, "--out", "found.safetensors", *QUICK, cwd=path)
    assert done.returncode == 0, done.stderr
    assert "time: data" in done.stdout
    words = ["--data", "digits", "--limit", 256, "--scales", "found.safetensors", "--out", "trained", *QUICK]
    done = repopt("train", *words, cwd=path)
    assert done.returncode == 0, done.stderr
    return path


def test_a_run_is_a_folder(folder):
    names = {path.name for path in (folder / "trained").iterdir()}
    assert names >= {
        "recipe.json",
        "run.json",
        "metrics.jsonl",
        "checkpoint.pt",
        "model.safetensors",
        "config.json",
        "scales.safetensors",
        "summary.json",
        "report.html",
    }
    assert (folder / "found" / "scales.jsonl").exists()
    epochs = [json.loads(line) for line in (folder / "trained" / "metrics.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    recipe = json.loads((folder / "trained" / "recipe.json").read_text())
    assert (recipe["epochs"], recipe["batch_size"], recipe["label_smoothing"]) == (2, 32, 0.0)


def test_the_evaluation_of_a_finished_run_is_what_the_run_said(folder):
    done = repopt("eval", "trained", "--limit", 256, "--sizes", 32, 48, "--json", "--device", "cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    summary = json.loads((folder / "trained" / "summary.json").read_text())
    assert scores[0]["accuracy"] == pytest.approx(summary["val_accuracy"])
    assert [score["size"] for score in scores] == [32, 48]


def test_runs_are_compared_on_one_page(folder):
    done = repopt("report", "found", "trained", "--out", "both.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "both.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "repopt_vgg_nano" in page


def test_the_demo_tells_the_whole_story(tmp_path):
    """Short trainings here; what they come to is not the point. tests/compare has the column of INT8."""
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    done = repopt("demo", "--epochs", 1, "--seeds", 1, "--quiet", cwd=tmp_path, prepare=without_int8)
    assert done.returncode == 0, done.stderr
    assert "all equal" in done.stdout
    for method in ("sgd", "dirac", "repopt", "repvgg"):
        assert f" {method} " in done.stdout
    page = Path("runs", "demo-2", "compare.html")
    assert done.stdout.strip().splitlines()[-1] == f"page: {page}"
    assert (tmp_path / page).exists()
    refused = repopt("demo", "--seeds", 0, cwd=tmp_path)
    assert (refused.returncode, "seeds must be at least 1" in refused.stderr) == (2, True)


def test_what_ships_is_listed(tmp_path):
    assert "repopt_vgg_b1" in repopt("list", "--scales", cwd=tmp_path).stdout


def test_the_commands_in_this_process(tmp_path, capsys, monkeypatch):
    """The same functions, where their lines are counted."""
    monkeypatch.chdir(tmp_path)
    tiny = ["--data", "fake:64,4,32", "--epochs", "1", "--warmup-epochs", "0", "--batch-size", "32", "--device", "cpu"]
    for words in (
        ["search", *tiny, "--out", "s.safetensors"],
        ["search", "--resume", "--epochs", "2", "--device", "cpu", "--out", "s.safetensors"],
        ["train", *tiny, "--scales", "s.safetensors", "--out", "run", "--strides", "2", "2", "1", "2", "1"],
        ["eval", "run", "--device", "cpu"],
        ["train", *tiny, "--se", "--out", "gated"],
        ["eval", "gated", "--device", "cpu"],
        ["report", "s", "run"],
    ):
        with pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert printed.count("scales: s.safetensors") == 2
    assert Path("s.safetensors").read_bytes() == Path("s/scales.safetensors").read_bytes()
    assert "accuracy" in printed
    assert json.loads((tmp_path / "run" / "config.json").read_text())["options"]["strides"] == [2, 2, 1, 2, 1]
    gates = [name for name in load_file(tmp_path / "gated" / "model.safetensors") if ".se." in name]
    assert len(gates) == 4 * len(Scales.load("repopt_vgg_nano"))  # two convolutions with a bias after each planned one
    assert json.loads((tmp_path / "gated" / "run.json").read_text())["options"] == {"se": True}


def other_scales(path):
    Scales({"conv": {"conv3x3": torch.ones(3)}}).save(path / "other.safetensors")


def empty_class(path):
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (path / "images" / part / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path / "images" / part / "dog" / "one.png")
    for name in ("cat", "dog"):
        (path / "single" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path / "single" / name / "one.png")


BAD = {
    "missing path": ("train --data cifar100:nowhere --scales ones --out x", "nowhere"),
    "empty class folder": ("train --data folder:images --scales ones --out x", "cat"),
    "corrupt archive": ("train --data cifar10:broken.tar.gz --scales ones --out x", "broken.tar.gz"),
    "unknown data": ("train --data mnist --scales ones --out x", "mnist"),
    "fewer images than parts of a batch": (
        "train --data fake:4,4,32 --batch-size 64 --accumulate 8 --scales ones --out x",
        "4 training images cannot make 8 parts of a batch: lower --accumulate",
    ),
    "fewer epochs than were trained": ("train --resume --epochs 1 --out trained", "was trained beyond epoch 1"),
    "neither a source nor a folder": ("train --data photos --scales ones --out x", "'photos' is not a source of data"),
    "one image of each class": ("train --data single --scales ones --out x", "no class has two images"),
    "lr not positive": ("train --lr 0 --scales ones --out x", "the recipe's lr must be more than 0"),
    "epochs not positive": ("train --epochs 0 --scales ones --out x", "the recipe's epochs must be at least 1"),
    "unknown field": ("train --recipe mine.toml --scales ones --out x", "did you mean epochs"),
    "optimizer that is not supported": ("train --optimizer LBFGS --scales ones --out x", "LBFGS is not supported: it"),
    "unknown recipe": (
        "search --recipe serch --out x",
        "'serch' is neither a recipe nor a .toml file: did you mean search",
    ),
    "out folder in use": ("train --scales ones --out trained", "there is a run in 'trained' already"),
    "nothing to resume": ("train --resume --out x", "there is no run in 'x' to resume"),
    "a run as weights": ("train --weights trained --method sgd --out x", "'trained' is a folder: give the file in it"),
    "no gates": ("train --model repopt_ghostnet_050 --se --out x", "repopt_ghostnet_050 has no option 'se'; it has"),
    "strides twice": (
        "search --strides 1 1 1 1 1 --model-args strides=2,2,2,2,2 --out x",
        "the model's strides is given twice: leave strides=2,2,2,2,2 out of --model-args",
    ),
    "real branches": ("train --model repvgg_nano --out x", "give --model repopt_vgg_nano, and --method repvgg"),
    "scales of another size": ("train --scales repopt_vgg_b1 --out x", "searched for repopt_vgg_b1"),
    "a folder as a model": (
        "train --model trained --scales ones --out x",
        "is a folder, but --model takes a model's name",
    ),
    "an optimizer in small letters": (
        "train --optimizer adamw --out x",
        "torch.optim has no 'adamw': did you mean AdamW",
    ),
    "scales of another model": ("train --scales other.safetensors --out x", "which the plan does not hold"),
    "unknown model": ("train --model repopt_vgg_b9 --scales ones --out x", "there is no model 'repopt_vgg_b9'"),
    "no run to evaluate": ("eval x", "is not a run folder: it has no model.safetensors"),
    "no run to report": ("report x", "x"),
    "scales file in the way": ("search --out found.safetensors", "there is a file 'found.safetensors' already"),
}


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        ("--data no-photos", "'no-photos' is not a source of data"),
        ("--model repopt_vgg_z9", "there is no model 'repopt_vgg_z9'"),
        ("--model timm:resnet81 --data digits", "timm has no model 'resnet81'"),
        ("--graph True", "leave --graph out"),
    ],
)
def test_no_notes_are_printed_of_a_run_that_cannot_start(words, trouble, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["train", *words.split(), "--device", "cpu", "--out", "x"])
    said = capsys.readouterr()
    assert not said.out
    assert trouble in said.err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "--model", "timm:resnet81", "--out", "x"])
    assert "note:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("--model other_nets:small --model-args width=4", "--scales learn may be better"),
        ("--strides 1 2 2 1 2", "--scales learn may be better"),
        ("--model-args strides=1,2,2,1,2", "--scales learn may be better"),
        ("--method csla --branches repvgg", "--scales names others"),  # which cannot learn any
    ],
)
def test_without_scales_that_ship_the_depth_sets_them_and_a_line_says_so(words, others, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = "train --data fake:32,4,16 --epochs 1 --warmup-epochs 0 --batch-size 32 --device cpu --out run"
    with pytest.raises(SystemExit, match="0"):
        main([*tiny.split(), *words.split()])
    assert f"follow the depth, as sqrt(2/l); {others}" in capsys.readouterr().out
    taken = Scales.load("run/scales.safetensors")
    assert {float(scale.mean()) for scales in taken.values() for scale in scales.values()} > {1.0}


def test_what_a_user_may_not_expect_is_said(tmp_path, capsys, monkeypatch):
    """Shipped scales are taken where none are given; a short run is all warm-up; a finished one is not trained on."""
    monkeypatch.chdir(tmp_path)
    tiny = ["train", "--data", "fake:64,4,32", "--batch-size", "32", "--device", "cpu", "--out", "run"]
    said = []
    for words in ([*tiny, "--epochs", "1"], [*tiny, "--resume"], [*tiny, "--resume", "--epochs", "2"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        lines = capsys.readouterr().out.splitlines()
        # noise may or may not be guessed well
        said += [line for line in lines if line.startswith("note: ") and "most common class" not in line]
    recipe, scales, warmup, few, finished, again, longer = said
    assert "give more" not in again  # they were given
    assert recipe.startswith("note: the recipe auto takes 1 epoch, batches of 32")
    assert scales.startswith("note: the scales are those that ship for repopt_vgg_nano; --scales learn may be better")
    assert "the warm-up of 5 epochs does not end within 1" in warmup
    assert few.startswith("note: an epoch has only 2 steps, of 32 images: a smaller batch or more images")
    assert "the run in run was finished, and only epochs that its checkpoint lacks are trained" in finished
    assert again == finished
    assert "the run now ends after epoch 2 instead of 1, and its cosine follows the new length" in longer
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["epochs"] == 2
    taken, shipped = Scales.load(tmp_path / "run" / "scales.safetensors"), Scales.load("repopt_vgg_nano")
    assert all(
        torch.equal(taken[name][branch], scale) for name, scales in shipped.items() for branch, scale in scales.items()
    )


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, case):
    words, expected = BAD[case]
    other_scales(folder)
    empty_class(folder)
    (folder / "broken.tar.gz").write_bytes(b"not an archive")
    (folder / "mine.toml").write_text("epoch = 3\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = repopt(*words.split(), cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    assert {path: content for path, content in before.items() if path.name != ".lock"} == after
    assert not (folder / "x").exists()
