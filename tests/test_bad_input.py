"""Whatever a user types, and whatever lies in the files, the answer is one sentence: no traceback, no hang.

Each case prepares a folder and gives a command. It runs in this process, under an alarm: a case that waits for ever
fails instead.
"""

import json
import math
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image

from bad_models import BAD_MODELS, TINY
from repopt.cli import main

OLD = Path(__file__).parent / "train" / "old_runs"
PATIENCE = 30  # seconds, for a case that takes less than one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: a finished run, and one that was stopped."""
    for name in ("finished_sgd", "stopped_sgd"):
        shutil.copytree(OLD / name, tmp_path / name.partition("_")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of modules that a case writes
    return tmp_path


class HangError(BaseException):
    """Not an Exception: decoders catch these."""


@contextmanager
def alarm(seconds):
    def ring(*_):
        raise HangError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(words, capsys):
    """The exit code, and what was said on stderr."""
    with alarm(PATIENCE), pytest.raises(SystemExit) as done:
        main(words)
    return done.value.code, capsys.readouterr().err


def without(path, *keys):
    """Takes keys out of a JSON file."""
    content = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({key: value for key, value in content.items() if key not in keys}))


def changed(path, **values):
    Path(path).write_text(json.dumps({**json.loads(Path(path).read_text()), **values}))


def recipe_of(text):
    return lambda: Path("mine.toml").write_text(text)


def images(extra):
    """Two splits of two classes of one image each, and something else among them."""

    def make():
        for part in ("train", "val"):
            for name in ("cat", "dog"):
                Path("images", part, name).mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(Path("images", part, name, "one.png"))
        extra(Path("images", "train", "cat"))

    return make


def looped(cat):
    for name in ("up", "again"):
        (cat / name).symlink_to("..", target_is_directory=True)


def containing_itself():
    inner = {}
    inner["model"] = inner
    torch.save(inner, "own.pth")


def unfinished_metrics(text):
    return lambda: Path("stopped", "metrics.jsonl").write_text(text)


def fifo(path):
    Path(path).unlink(missing_ok=True)
    os.mkfifo(path)


def finished_without_metrics():
    with pytest.raises(SystemExit, match="0"):
        main(f"{RESUME} stopped".split())
    Path("stopped", "metrics.jsonl").unlink()


RESUME = "train --resume --device cpu --quiet --out"
MINE = f"{TINY} --recipe mine.toml"
PICTURES = "train --data folder:images --scales ones --device cpu --out x"

# what the case is -> what prepares it, the command, and words of the sentence
CASES = {
    "run.json lacks a key": (lambda: without("finished/run.json", "data"), "eval finished", "run.json"),
    "run.json lacks a key, on resume": (lambda: without("stopped/run.json", "model"), f"{RESUME} stopped", "run.json"),
    "run.json has options of another model": (
        lambda: changed("stopped/run.json", options={"colour": 1}),
        f"{RESUME} stopped",
        "colour",
    ),
    "config.json lacks classes": (
        lambda: without("finished/config.json", "classes"),
        "eval finished --device cpu",
        "config.json",
    ),
    "config.json lacks mean": (lambda: without("finished/config.json", "mean"), "eval finished", "config.json"),
    "config.json has no size": (lambda: without("finished/config.json", "size"), "eval finished", "config.json"),
    "config.json has a deviation of 0": (
        lambda: changed("finished/config.json", std=[0.0, 0.1, 0.1]),
        "eval finished --device cpu",
        "config.json",
    ),
    "config.json lacks options": (
        lambda: changed("finished/config.json", options={"depths": [2, 1, 1, 1], "widths": [4] * 4, "stem": 4}),
        "eval finished --device cpu",
        "does not fit",
    ),
    "config.json has text for a number": (
        lambda: changed("finished/config.json", options={"num_classes": "4"}),
        "eval finished --device cpu",
        "num_classes",
    ),
    "quantized.json lacks a key": (
        lambda: without("finished/int8/quantized.json", "method"),
        "report finished --out x",
        "quantized.json",
    ),
    "quantized.json lacks a key, on export": (
        lambda: (
            without("finished/int8/quantized.json", "method"),
            Path("finished", "int8", "program.pt2").write_bytes(b"no"),
        ),
        "export finished --format onnx-int8 --out x.onnx",
        "quantized.json",
    ),
    "program.pt2 is corrupt": (
        lambda: Path("finished", "int8", "program.pt2").write_bytes(b"no"),
        "export finished --format onnx-int8 --trust --out x.onnx",
        "program.pt2",
    ),
    "recipe.json is a list": (
        lambda: Path("finished", "recipe.json").write_text("[]"),
        "eval finished --device cpu",
        "recipe.json",
    ),
    "recipe.json is a list, given as a recipe": (
        lambda: Path("mine.json").write_text("[]"),
        f"{TINY} --recipe mine.json",
        "mine.json",
    ),
    "recipe.json is nested without end": (
        lambda: Path("finished", "recipe.json").write_text("[" * 100_000),
        "report finished --out x",
        "recipe.json",
    ),
    "recipe.json has a number without end": (
        lambda: Path("finished", "recipe.json").write_text('{"epochs": ' + "9" * 10_000 + "}"),
        "eval finished --device cpu",
        "recipe.json",
    ),
    "recipe.json is a FIFO": (
        lambda: fifo("finished/recipe.json"),
        "eval finished --device cpu",
        "recipe.json",
    ),
    "recipe.json is a folder": (
        lambda: (Path("finished", "recipe.json").unlink(), Path("finished", "recipe.json").mkdir()),
        "eval finished --device cpu",
        "recipe.json",
    ),
    "model.safetensors is a folder": (
        lambda: (Path("finished", "model.safetensors").unlink(), Path("finished", "model.safetensors").mkdir()),
        "eval finished --device cpu",
        "model.safetensors",
    ),
    "summary.json took NaN seconds": (
        lambda: changed("finished/summary.json", seconds={"train": math.nan}),
        "report finished",
        "summary.json",
    ),
    "config.json has more classes than the memory": (
        lambda: changed("finished/config.json", options={"num_classes": 10**12}),
        "eval finished",
        "",
    ),
    "summary.json is empty": (
        lambda: Path("finished", "summary.json").write_text(""),
        "report finished --out x",
        "summary.json",
    ),
    "metrics.jsonl has a line without epoch": (unfinished_metrics("{}\n"), f"{RESUME} stopped", "metrics.jsonl"),
    "metrics.jsonl is broken in the middle": (
        unfinished_metrics('{"epoch": 1}\n{"ep\n{"epoch": 2}\n'),
        f"{RESUME} stopped",
        "metrics.jsonl",
    ),
    "a finished run without metrics": (
        finished_without_metrics,
        f"{RESUME} stopped",
        "has no record of epoch 1",
    ),
    "the warm-up never ends": (None, f"{TINY} --warmup-epochs inf", "warmup_epochs must"),
    "momentum NaN": (None, f"{TINY} --momentum nan", "momentum must"),
    "decay NaN": (None, f"{TINY} --weight-decay nan", "weight_decay must"),
    "mixup NaN": (None, f"{TINY} --mixup nan", "mixup must"),
    "mixup inf": (None, f"{TINY} --mixup inf", "mixup must"),
    "lr inf": (None, f"{TINY} --lr inf", "lr must"),
    "clip NaN": (None, f"{TINY} --clip nan", "clip must"),
    "start NaN": (None, TINY.replace("train", "search", 1) + " --start nan", "start must"),
    "a crop padding larger than any image": (None, f"{TINY} --crop-padding 99999999", "crop_padding must"),
    "epochs beyond counting": (None, f"{TINY} --epochs {'9' * 400}", "epochs must"),
    "images larger than the memory": (None, f"{TINY} --size 999999", "size must"),
    "more noise than the memory": (
        None,
        TINY.replace("fake:32,4,16", "fake:99999999999,4,999"),
        "fake:99999999999,4,999",
    ),
    "a seed of verify beyond 64 bits": (None, f"verify --seed {2**70}", "--seed must"),
    "a number of 5,000 digits": (recipe_of(f"epochs = {'9' * 5000}"), MINE, "mine.toml"),
    "seed 2^64": (None, f"{TINY} --seed {2**64}", "seed must"),
    "flip = yes": (recipe_of('flip = "yes"'), MINE, "flip must"),
    "nesterov = 1": (recipe_of("nesterov = 1"), MINE, "nesterov must"),
    "resized_crop of one number": (recipe_of("resized_crop = [1]"), MINE, "resized_crop must"),
    "resized_crop the wrong way round": (recipe_of("resized_crop = [1.0, 0.1]"), MINE, "resized_crop must"),
    "randaugment without a level": (recipe_of("randaugment = [2]"), MINE, "randaugment must"),
    "optimizer = 3": (recipe_of("optimizer = 3"), MINE, "optimizer must"),
    "base is a list": (recipe_of("base = [1]"), MINE, "mine.toml"),
    "base is the recipe itself": (recipe_of('base = "mine.toml"'), MINE, "mine.toml"),
    "a recipe that is not UTF-8": (lambda: Path("mine.toml").write_bytes(b"\xff\xfe"), MINE, "mine.toml"),
    "a recipe that is a FIFO": (lambda: fifo("mine.toml"), MINE, "mine.toml"),
    "no name for the folder": (None, [*TINY.split()[:-1], ""], "--out"),
    "no name for the folder, with =": (None, [*TINY.split()[:-2], "--out="], "--out"),
    "no name for the run": (None, ["eval", ""], "empty"),
    "a directory loop": (images(looped), PICTURES, "again"),
    "a FIFO named .png": (images(lambda cat: fifo(cat / "two.png")), PICTURES, "two.png"),
    "a checkpoint that contains itself": (containing_itself, f"{TINY} --weights own.pth", "no state dict"),
    "an archive that never ends": (None, TINY.replace("fake:32,4,16", "cifar100:/dev/zero"), "/dev/zero"),
    "an empty checkpoint": (
        lambda: Path("stopped", "checkpoint.pt").write_bytes(b""),
        f"{RESUME} stopped",
        "checkpoint.pt",
    ),
    "an empty weights file": (lambda: Path("e.pth").touch(), f"{TINY} --weights e.pth", "e.pth"),
    **BAD_MODELS,
    "other classes than the data's": (None, f"{TINY} --model-args num_classes=3", "num_classes is 4 in this data"),
    "a backbone": (None, f"{TINY} --model-args features_only=true", "features_only is not for --model-args"),
    "an argument that a flag has": (None, f"{TINY} --model-args kernel=paper", "give --kernel instead"),
    "scales for plain SGD": (None, f"{TINY} --method sgd --scales ones", "the method sgd has no scales"),
    "images that cannot be evaluated": (
        None,
        f"{TINY} --method sgd --model other_nets:flat --eval-size 48",
        "does not take images of 3 x 48 x 48",
    ),
    "a file in place of a run": (None, "report finished/run.json --out x.html", "'finished/run.json' is a file"),
    "a counterpart that is not there": (
        None,
        f"{TINY} --method repvgg --model timm:resnet10t",
        "take the method branches",
    ),
    "someone's factory in a run": (
        lambda: changed("finished/config.json", model="bad_l:net"),
        "eval finished --device cpu",
        "would import bad_l:net and so execute its code: give --trust",
    ),
    "someone's factory in a run, exported": (
        lambda: changed("finished/config.json", model="bad_l:net"),
        "export finished --out x.onnx",
        "give --trust",
    ),
    "someone's factory in a run, quantized": (
        lambda: changed("finished/config.json", model="bad_l:net"),
        "quantize finished --no-speed --out x",
        "give --trust",
    ),
    "someone's factory in a run, resumed": (
        lambda: changed("stopped/run.json", model="bad_l:net"),
        f"{RESUME} stopped",
        "give --trust",
    ),
    "weights by the arguments of a run": (
        lambda: changed("finished/config.json", model="timm:resnet10t", options={"checkpoint_path": "own.pth"}),
        "eval finished --device cpu",
        "is made without weights: leave checkpoint_path out",
    ),
    "biases of operators that are not there": (
        lambda: changed("finished/config.json", biases=["stage9.conv"]),
        "eval finished --device cpu",
        "no operator 'stage9.conv'",
    ),
    "symmetric INT8 for x86": (None, "quantize finished --symmetric", "give --backend onnxruntime"),
    "symmetric floats": (None, "export finished --symmetric --out x.onnx", "leave --symmetric out"),
    "symmetric from a folder": (
        None,
        "export finished --format onnx-int8 --symmetric --int8 finished --out x.onnx",
        "leave --int8 out",
    ),
    "the best weights of an old run": (None, "eval finished --best --device cpu", "has no best.safetensors"),
    "an export of the best weights of an old run": (
        None,
        "export finished --best --format safetensors --out x",
        "has no best.safetensors",
    ),
    "best weights that are damaged": (
        lambda: Path("finished", "best.safetensors").write_bytes(b"best"),
        "eval finished --best --device cpu",
        "best.safetensors",
    ),
    "a run that is resumed for no epochs": (None, f"{RESUME} stopped --epochs 0", "epochs must be at least 1"),
    "a finished run whose summary is damaged": (
        lambda: changed("finished/summary.json", guessing="abc"),
        f"{RESUME} finished",
        "summary.json",
    ),
    "a finished run that cannot go on": (None, f"{RESUME} finished --epochs 9", "has no checkpoint to go on from"),
    "a folder without class folders": (
        lambda: Path("photos").mkdir(),
        "train --data photos --out x",
        "'photos' holds no class folders",
    ),
    "a folder with a validation split alone": (
        lambda: Path("photos", "val", "cat").mkdir(parents=True),
        "train --data photos --out x",
        "'photos' holds no folder 'train'",
    ),
    "a picture instead of a folder": (
        lambda: Image.new("RGB", (8, 8)).save("one.png"),
        "train --data one.png --out x",
        "'one.png' is not a source of data, nor a folder",
    ),
    "a folder with a colon behind it": (images(lambda _: None), "train --data images: --out x", "'images:' is not"),
    "no image where one is expected": (
        images(lambda cat: (cat / "one.png").write_text("no image")),
        "train --data images --out x",
        "1 of 4 images are broken",
    ),
    "scales that are a FIFO": (lambda: fifo("s.safetensors"), f"{TINY} --scales s.safetensors", "s.safetensors"),
}


@pytest.mark.filterwarnings("ignore:the checkpoint .* was written by an earlier version")
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_a_sentence(case, folder, capsys):
    prepare, command, words = CASES[case]
    if prepare is not None:
        prepare()
    capsys.readouterr()
    before = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    code, said = answer(command.split() if isinstance(command, str) else command, capsys)
    assert code == 2, said
    assert words in said
    assert len(said.splitlines()) == 1, said
    assert "()" not in said
    assert sorted(path for path in folder.rglob("*") if path.name != ".lock") == before


def test_a_start_that_failed_leaves_nothing_that_blocks_the_next(folder, capsys):
    """The loss is not finite at the first step, when the run's files are there already."""
    Path("mine").mkdir()
    Path("mine", "notes.txt").write_text("my own")
    for out in ("x", "mine"):
        code, said = answer([*TINY.split(), "--method", "sgd", "--lr", "1e30", "--lr-batch", "1", "--out", out], capsys)
        assert code == 2, said
        assert not list(Path().glob(f"{out}/*.json"))
    assert not Path("x").exists()
    assert Path("mine", "notes.txt").read_text() == "my own"
    assert answer([*TINY.split(), "--out", "mine"], capsys)[0] == 0
