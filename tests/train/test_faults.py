"""A run whose writes fail, or whose checkpoints are damaged, goes on to the bits of a run that had no trouble.

Kills are in test_resume.
"""

import dataclasses
import os
import random
import resource
import shutil
import sys
import warnings
from contextlib import contextmanager

import pytest

from repopt.train.checkpoint import CHECKPOINT, PREVIOUS
from repopt.train.recipe import demo
from repopt.train.training import Job, train_run
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
