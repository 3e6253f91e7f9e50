"""What ends a run early: signals, a loss that is not finite, a full disk, a folder in use. No checkpoint is lost."""

import os
import signal
import subprocess

import pytest
import torch

from forked import fork
from repopt.files import UNFINISHED
from repopt.train.checkpoint import CHECKPOINT, load_checkpoint, read_origin, save_checkpoint
from train.full_disk import save_too_much
from train.program import TINY, Program, finished, metrics, run, weights

CPU = torch.device("cpu")
SGD = ["train", *TINY, "--method", "sgd"]
LONG = ["--data", "fake:1280,4,16", "--epochs", "2", "--dropout", "0.3"]  # an epoch of 40 steps: time to be stopped in


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def one_sentence(said):
    """What the program said of itself, which is one line without a traceback."""
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("repopt:") and "epoch 1/" not in line[:20]]
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped."""
    return finished(*SGD, *LONG, "--quiet", out=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        *(pytest.param(number, 128 + number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGUSR1)),
    ],
)
def test_a_signal_leaves_a_checkpoint_in_the_middle_of_an_epoch_and_the_run_goes_on_from_there(
    number, code, whole, tmp_path
):
    way = [*SGD, *LONG, "--quiet"]
    out = tmp_path / "stopped"
    program = Program(*way, "--out", out, log=tmp_path / "log")
    program.wait_for((out / CHECKPOINT).exists)  # after the first of two epochs
    program._process.join(0.1)
    program.send(number)
    assert program.wait() == code, program.said
    said = one_sentence(program.said)
    assert f"stopped by {number.name} after step" in said
    assert f"--resume --out {out} goes on from there" in said
    position = load_checkpoint(out, CPU)["position"]
    assert f"after step {position['step']} of epoch {position['epoch'] + 1}" in said
    resumed, said = run(*way, "--out", out, "--resume", log=tmp_path / "log")
    assert resumed == 0, said
    assert weights(out) == weights(whole)
    assert metrics(out) == metrics(whole)


def test_a_loss_that_is_not_finite_names_step_lr_and_the_checkpoint_that_stays(tmp_path):
    out = tmp_path / "run"
    way = [*SGD, "--quiet", "--warmup-epochs", "2", "--lr", "1e20"]
    code, said = run(*way, "--out", out, log=tmp_path / "log")
    assert code == 2
    assert "not finite at step" in one_sentence(said)
    assert "where the learning rate was" in said
    assert "the last good checkpoint is none yet" in said
    assert not (out / CHECKPOINT).exists()


def test_a_late_loss_that_is_not_finite_leaves_the_last_good_checkpoint(tmp_path):
    """The run is good for an epoch; then its recipe is given a learning rate that nothing survives."""
    out = tmp_path / "run"
    way = [*SGD, *LONG, "--quiet"]
    program = Program(*way, "--out", out, log=tmp_path / "log", killed=True)
    program.wait_for((out / CHECKPOINT).exists)
    program.send(signal.SIGKILL)
    program.wait()
    before = load_checkpoint(out, CPU)
    recipe = (out / "recipe.json").read_text()
    (out / "recipe.json").write_text(recipe.replace('"lr": 0.1', '"lr": 1e30'))
    save_checkpoint(out, before, read_origin(out))  # as if it had been trained so from the start
    code, said = run(*way, "--out", out, "--resume", log=tmp_path / "log2")
    assert code == 2
    epoch = before["position"]["epoch"]
    assert f"the last good checkpoint is that after epoch {epoch} in '{out}'" in one_sentence(said)
    assert f"of epoch {epoch + 1}, where the learning rate was" in said
    assert load_checkpoint(out, CPU)["position"] == before["position"]
    assert all(torch.equal(value, before["model"][name]) for name, value in load_checkpoint(out, CPU)["model"].items())


def test_a_full_disk_loses_no_checkpoint(tmp_path):
    """The second checkpoint is larger than any file may be."""
    save_checkpoint(tmp_path, {"small": torch.ones(1000)})
    fork(save_too_much, tmp_path, 100_000, killed=True).join(120)  # coverage's data would be too large as well
    said = (tmp_path / "said").read_text()
    assert "could not be written" in said
    assert "File too large" in said
    assert "the last one is kept" in said
    assert torch.equal(load_checkpoint(tmp_path, CPU)["small"], torch.ones(1000))
    assert not list(tmp_path.glob(f"{UNFINISHED}*"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_run_on_a_disk_that_fills_up_goes_on_when_there_is_room(tmp_path):
    disk, way = tmp_path / "disk", [*SGD, "--quiet"]
    disk.mkdir()
    whole = finished(*way, out=tmp_path / "whole")
    room = (whole / CHECKPOINT).stat().st_size * 3 // 2  # for one checkpoint and no second one beside it
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        code, said = run(*way, "--out", disk / "run", log=tmp_path / "log")
        assert code == 2
        assert "could not be written" in one_sentence(said)
        assert "the last one is kept" in said
        assert load_checkpoint(disk / "run", CPU)["position"]["epoch"] == 1
        subprocess.run(["mount", "-o", f"remount,size={room * 4}", disk], check=True)
        code, said = run(*way, "--out", disk / "run", "--resume", log=tmp_path / "log")
        assert code == 0, said
        assert weights(disk / "run") == weights(whole)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_in_use_is_a_sentence_and_nothing_is_overwritten(whole, tmp_path):
    before = contents(whole)
    code, said = run(*SGD, "--quiet", "--out", whole, log=tmp_path / "log")
    assert code == 2
    assert f"there is a run in '{whole}' already" in one_sentence(said)
    assert contents(whole) == before


def test_resuming_what_is_no_run_is_a_sentence(tmp_path):
    code, said = run(*SGD, "--out", tmp_path / "none", "--resume", log=tmp_path / "log")
    assert code == 2
    assert "there is no run" in one_sentence(said)
    assert not (tmp_path / "none").exists()


def test_a_second_process_in_the_same_folder_is_a_sentence_and_the_first_goes_on(tmp_path):
    way = [*SGD, *LONG, "--quiet"]
    out = tmp_path / "run"
    first = Program(*way, "--out", out, log=tmp_path / "log")
    first.wait_for((out / "recipe.json").exists)
    code, said = run(*way, "--out", out, "--resume", log=tmp_path / "log2")
    assert code == 2
    assert f"another process is training in '{out}'" in one_sentence(said)
    assert first.wait() == 0, first.said
    assert [record["epoch"] for record in metrics(out)] == [1, 2]
