"""A run whose writes fail, or whose checkpoints are damaged, goes on to the bits of a run that had no trouble.

Kills are in test_resume.
"""

import dataclasses
import json
import os
import random
import resource
import shutil
import sys
import warnings
from contextlib import contextmanager

import pytest
import torch

from repopt.train.checkpoint import CHECKPOINT, PREVIOUS, load_checkpoint, save_checkpoint
from repopt.train.job import Job
from repopt.train.recipe import demo
from repopt.train.training import train_run
from train.program import metrics, weights
from train.test_checkpoint import flipped, zeroed

RECIPE = dataclasses.replace(demo(), epochs=3, batch_size=32, eval_every=1, dropout=0.3, ema=0.9)
TINY = {"depths": (1, 1, 1, 1), "widths": (4, 4, 4, 8)}
JOB = Job(method="repopt", model="repopt_vgg_nano", data="fake:64,4,8", recipe=RECIPE, scales="ones", options=TINY)


class Faults:
    """Counts the calls that open, rename or flush a file in a folder, and makes the n-th of them fail."""

    def __init__(self):
        self.folder, self.left, self.calls = None, None, 0
        sys.addaudithook(self._hear)  # for good: it cannot be taken away

    def _hear(self, event, args):
        if event in ("open", "os.rename") and self.folder is not None and str(args[0]).startswith(str(self.folder)):
            self.count()

    def count(self, *args):
        self.calls += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise OSError(5, "Input/output error")

    @contextmanager
    def within(self, folder, left=None):
        flush = os.fsync
        self.folder, self.left, self.calls = folder, left, 0
        os.fsync = lambda handle: (self.count(), flush(handle))[1]
        try:
            yield
        finally:
            self.folder, os.fsync = None, flush


@pytest.fixture(scope="module")
def faults():
    return Faults()


@contextmanager
def files_of_at_most(size):
    """Writing past that many bytes fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train(out):
    train_run(JOB, out, resume=(out / "recipe.json").exists(), device="cpu", quiet=True)


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch):
    """Its thread writes when it likes."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, faults):
    """A run without trouble, and how many calls it made that could fail."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with faults.within(out):
        train(out)
    return out, faults.calls


@pytest.mark.filterwarnings("ignore:.*has no checkpoint. the run starts over")
@pytest.mark.filterwarnings("ignore:.*Input/output error.. the run goes on from the checkpoint before it")
@pytest.mark.parametrize("cases", [5, pytest.param(175, marks=pytest.mark.slow)])
def test_a_run_whose_writes_fail_twice_ends_with_the_same_bits(cases, whole, faults, tmp_path):
    (folder, calls), draw, errors = whole, random.Random(cases), []
    largest = (folder / CHECKPOINT).stat().st_size
    for case in range(cases):
        out = tmp_path / str(case)
        for _ in range(2):
            full = draw.random() < 0.3
            trouble = files_of_at_most(draw.randrange(largest)) if full else faults.within(out, draw.randint(1, calls))
            try:
                with trouble:
                    train(out)
            except OSError as error:
                errors.append(str(error))
        train(out)
        assert weights(out) == weights(folder)
        assert metrics(out) == metrics(folder)
        assert not list(out.glob(".unfinished.*"))
        shutil.rmtree(out)
    print(f"{len(errors)} write faults, {cases} runs ended with the same bits")
    assert len(errors) > cases
    assert not [error for error in errors if "unexpected pos" in error]  # torch's, instead of the system's


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """A run that was killed after two epochs, and has two checkpoints."""
    out = shutil.copytree(whole[0], tmp_path_factory.mktemp("stopped") / "run")
    for name in ("summary.json", "model.safetensors", "model_ema.safetensors", "config.json"):
        (out / name).unlink()
    assert (out / PREVIOUS).exists()
    return out


@pytest.mark.parametrize("cases", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_a_run_whose_checkpoint_is_damaged_says_so_and_ends_with_the_same_bits(cases, whole, stopped, tmp_path):
    draw, said = random.Random(cases), 0
    for case in range(cases):
        out = shutil.copytree(stopped, tmp_path / str(case))
        content = (out / CHECKPOINT).read_bytes()
        damaged = draw.choice([flipped, zeroed])(content, draw)
        (out / CHECKPOINT).write_bytes(damaged)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            train(out)
        assert any("goes on from the checkpoint before it" in str(each.message) for each in heard) == (
            damaged != content
        )
        said += damaged != content
        assert weights(out) == weights(whole[0])
        assert metrics(out) == metrics(whole[0])
        shutil.rmtree(out)
    print(f"{said} of {cases} changed the file, were noticed, and the runs ended with the same bits")
    assert said


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("left", [None, 0, 1, 2.5], ids=["gone", "empty", "one epoch", "half a line"])
def test_a_run_whose_records_are_lost_is_not_summed_up_from_the_rest(left, whole, tmp_path):
    out = shutil.copytree(whole[0], tmp_path / "run")
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").unlink()
    if left is not None:
        half = lines[2][:40] if left == 2.5 else ""
        (out / "metrics.jsonl").write_text("".join(lines[: int(left)]) + half)
    before = files(out)
    with pytest.raises(ValueError, match=r"metrics\.jsonl' has no record of epoch \d"):
        train(out)
    assert files(out) == before


@pytest.mark.parametrize("name", ["val_accuracy", "images_per_second"])
def test_a_last_record_without_its_figures_does_not_become_the_summary(name, whole, tmp_path):
    out = shutil.copytree(whole[0], tmp_path / "run")
    *first, last = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    del last[name]
    (out / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (*first, last)))
    before = files(out)
    with pytest.raises(ValueError, match=f"metrics.jsonl' has no {name} for epoch 3"):
        train(out)
    assert files(out) == before


def test_a_run_is_not_resumed_to_fewer_epochs_than_it_was_trained(whole, tmp_path):
    out = shutil.copytree(whole[0], tmp_path / "run")
    recipe = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").write_text(json.dumps({**recipe, "epochs": 2}))
    before = files(out)
    with pytest.raises(ValueError, match=r"was trained beyond epoch 2 already: give it more --epochs"):
        train(out)
    assert files(out) == before


NO_STATES = {
    "another file": lambda state: {"a": 1},
    "no position": lambda state: {**state, "position": {}},
    "an epoch below 0": lambda state: {**state, "position": {**state["position"], "epoch": -1}},
    "an optimizer without groups": lambda state: {**state, "optimizer": {"state": {}}},
    "a rank without random numbers": lambda state: {**state, "ranks": [{"totals": torch.zeros(4), "random": {}}]},
    "no ranks": lambda state: {**state, "ranks": []},
    "a clock of words": lambda state: {**state, "clock": {"train": "long"}},
}


@pytest.mark.filterwarnings("ignore:.*by an earlier version")
@pytest.mark.parametrize("case", NO_STATES)
def test_a_file_that_lacks_what_a_run_needs_is_a_damaged_checkpoint(case, whole, stopped, tmp_path):
    """Of an earlier version: later ones are sealed."""
    out = shutil.copytree(stopped, tmp_path / "run")
    info = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**info, "id": None}))
    for name in (CHECKPOINT, PREVIOUS):
        state = torch.load(out / name, weights_only=True)
        del state["origin"]
        torch.save(NO_STATES[case](state) if name == CHECKPOINT else state, out / name)
    with pytest.warns(UserWarning, match=r"does not hold the state of a run .*: the run goes on from the"):
        train(out)
    assert weights(out) == weights(whole[0])
    torch.save(NO_STATES[case](state), out / CHECKPOINT)
    (out / PREVIOUS).unlink()
    with pytest.raises(ValueError, match=r"does not hold the state of a run .*: bring it back from a copy"):
        train(out)


def test_a_checkpoint_that_cannot_be_flushed_leaves_both_that_were_there(faults, tmp_path):
    for value in (1, 2):
        save_checkpoint(tmp_path, {"value": value})
    before = files(tmp_path)
    flush, os.fsync = os.fsync, lambda handle: faults.count()
    faults.left = 1
    try:
        with pytest.raises(OSError, match="the last one is kept"):
            save_checkpoint(tmp_path, {"value": 3})
    finally:
        os.fsync = flush
    assert files(tmp_path) == before


def test_a_checkpoint_that_the_disk_does_not_give_is_a_damaged_one(faults, tmp_path):
    for value in (1, 2):
        save_checkpoint(tmp_path, {"value": value})
    with faults.within(tmp_path, 1), pytest.warns(UserWarning, match=r"Input/output error\): the run goes on from"):
        assert load_checkpoint(tmp_path, torch.device("cpu")) == {"value": 1}
