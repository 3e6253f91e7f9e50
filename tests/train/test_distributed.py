"""Two processes train as one does that computes its batch in two parts, and neither outlives the other.

Norms use the statistics of their own rank's images, as those of a part are its own; running statistics are rank 0's.
"""

import signal
import socket

import pytest
import torch

from data.pictures import class_folders, picture
from distributed.ranks import on_ranks
from forked import fork
from train.equal import train_all
from train.program import TINY, Program, metrics, weights
from train.sharing import raises_what_the_first_raised
from train.standing import ask_the_second_to_stop, beat_fast, come_late

CASES = ("sgd", "repopt", "repopt-adamw", "search", "learn")
LONG = ["train", *TINY, "--method", "sgd", "--data", "fake:1280,4,16", "--epochs", "30", "--dropout", "0.3", "--quiet"]
SHORT = ["train", *TINY, "--scales", "ones", "--dropout", "0.3", "--device", "cpu"]


def world_of_two():
    """The variables that torchrun sets for two ranks on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What one process wrote that computes in two parts, and what two processes did."""
    found = {processes: tmp_path_factory.mktemp(f"{processes}-processes") for processes in (1, 2)}
    ranks = [fork(train_all, found[2], 1, env) for env in world_of_two()]
    train_all(found[1], 2, {})
    for rank in ranks:
        rank.join(300)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return found


def load(folder, case):
    return torch.load(folder / f"{case}.pt", weights_only=True)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_reach_the_weights_of_one_that_computes_in_two_parts(folders, case):
    one, two = load(folders[1], case), load(folders[2], case)
    for name, weight in one["weights"].items():
        assert weight.dtype == torch.float64
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-10)
    for ours, theirs in zip(two["records"], one["records"], strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-6)  # totals add up float32 losses
        assert ours["train_accuracy"] == theirs["train_accuracy"]


@pytest.mark.parametrize("case", CASES)
def test_evaluation_by_two_processes_counts_each_image_once_with_the_statistics_of_the_first(folders, case):
    two = load(folders[2], case)
    assert two["alone"]["images"] == 9  # in batches of 5: one rank has two, the other one
    assert two["records"][-1]["val_loss"] == pytest.approx(two["alone"]["loss"], abs=1e-12)
    assert two["records"][-1]["val_accuracy"] == two["alone"]["accuracy"]


def start(args, folder, name, outs, *, second=(), cwds=(None, None), prepare=None, killed=False):
    """Two ranks started by hand: torchrun would end the survivor before we could see what it does.

    Args:
        args: of both.
        folder: for their logs.
        name: of the logs.
        outs: their run folders.
        second: what the second one gets on top.
        cwds: where they run.
        prepare: a function that each calls first.
        killed: whether they are to be killed.
    """
    both = zip(outs, world_of_two(), (args, [*args, *second]), cwds, strict=True)
    return [
        Program(*own, "--out", out, log=folder / f"{name}-{rank}.log", env=env, cwd=cwd, prepare=prepare, killed=killed)
        for rank, (out, env, own, cwd) in enumerate(both)
    ]


@pytest.mark.parametrize("way", [["--method", "sgd"], ["--scales", "learn", "--freeze-at", "0.5"]], ids=str)
def test_two_ranks_train_a_network_with_an_unused_head(way, tmp_path):
    args = ["train", *TINY, *way, "--model", "other_nets:WithUnusedHead", "--device", "cpu"]
    ranks = start(args, tmp_path, "idle", [tmp_path / "run"] * 2)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said + ranks[1].said


def test_the_first_of_two_ranks_alone_prints_what_they_evaluated(trained_run, tmp_path):
    ranks = [
        Program("eval", trained_run, "--device", "cpu", "--json", log=tmp_path / f"{env['RANK']}.log", env=env)
        for env in world_of_two()
    ]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0], ranks[0].said + ranks[1].said
    assert [rank.said.count("accuracy") for rank in ranks] == [1, 0]


def test_an_error_of_the_first_rank_is_raised_by_each(tmp_path):
    on_ranks(raises_what_the_first_raised, 2, tmp_path)


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_is_killed_ends_the_other_with_a_sentence(dead, tmp_path):
    ranks = start(LONG, tmp_path, "killed", [tmp_path / "run"] * 2, killed=True)
    ranks[0].wait_for((tmp_path / "run" / "metrics.jsonl").exists)
    ranks[dead].send(signal.SIGKILL)
    survivor = ranks[1 - dead]
    code = survivor.wait(timeout=30)
    assert code == 2, survivor.said
    (line,) = [line for line in survivor.said.splitlines() if line.startswith("repopt:")]
    assert f"rank {1 - dead} lost another rank" in line
    assert "Traceback" not in survivor.said
    ranks[dead].wait()


def test_ranks_with_other_flags_end_at_once_and_name_them(tmp_path):
    other = ["--lr", "0.3", "--seed", "7", "--data", "fake:64,4,16"]
    ranks = start(SHORT, tmp_path, "flags", [tmp_path / "run"] * 2, second=other)
    assert [rank.wait(timeout=60) for rank in ranks] == [2, 2], ranks[0].said + ranks[1].said
    for rank in ranks:
        assert "rank 1 differs from rank 0 in data (fake:64,4,16 instead of fake:128,4,16), lr (0.3 " in rank.said
        assert "seed (7 instead of 0)" in rank.said
        assert "Traceback" not in rank.said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda train: (train / "cat" / "0.png").unlink(), "in training images (11 instead of 12), the digest of the"),
        (lambda train: picture(train / "cat" / "0.png", seed=99), "in the digest of the data ("),
    ],
    ids=["one fewer", "another"],
)
def test_ranks_with_other_images_end_at_once_and_say_so(spoil, words, tmp_path):
    for machine in ("one", "other"):
        class_folders(tmp_path / machine / "pets", endings=(".png",), size=(16, 16))
    spoil(tmp_path / "other" / "pets" / "train")
    args = [*SHORT, "--data", "folder:pets", "--batch-size", "4", "--size", "16"]
    ranks = start(args, tmp_path, "data", [tmp_path / "run"] * 2, cwds=(tmp_path / "one", tmp_path / "other"))
    assert [rank.wait(timeout=60) for rank in ranks] == [2, 2], ranks[0].said + ranks[1].said
    assert all(f"rank 1 differs from rank 0 {words}" in rank.said for rank in ranks)


def test_ranks_that_evaluate_other_images_end_at_once_and_say_so(trained_run, tmp_path):
    ranks = [
        Program("eval", trained_run, "--device", "cpu", "--limit", limit, log=tmp_path / f"{limit}.log", env=env)
        for limit, env in zip((40, 20), world_of_two(), strict=True)
    ]
    assert [rank.wait(timeout=60) for rank in ranks] == [2, 2], ranks[0].said + ranks[1].said
    assert all("rank 1 differs from rank 0 in images (20 instead of 40), the digest" in rank.said for rank in ranks)


@pytest.mark.parametrize("still", [0, 1])
def test_a_rank_that_is_stopped_is_named_and_ends_the_other(still, tmp_path):
    ranks = start(LONG, tmp_path, "still", [tmp_path / "run"] * 2, prepare=beat_fast, killed=True)
    ranks[0].wait_for((tmp_path / "run" / "metrics.jsonl").exists)
    ranks[still].send(signal.SIGSTOP)
    other = ranks[1 - still]
    assert other.wait(timeout=60) == 2, other.said
    assert f"repopt: rank {still} has given no" in other.said
    ranks[still].send(signal.SIGKILL)
    ranks[still].wait()


def test_a_rank_that_keeps_the_other_waiting_is_named_and_waited_for(tmp_path):
    ranks = [fork(come_late, tmp_path / "log", env) for env in world_of_two()]
    for rank in ranks:
        rank.join(100)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert (tmp_path / "log").read_text().count("rank 1 has kept the others waiting") == 1


def test_two_ranks_stopped_by_a_signal_go_on_to_the_same_bits_and_only_the_first_has_written(tmp_path):
    """Dropout draws on each rank: its random numbers are in the checkpoint too."""
    whole = start(SHORT, tmp_path, "whole", [tmp_path / "whole"] * 2)
    assert [rank.wait() for rank in whole] == [0, 0], whole[0].said + whole[1].said
    out = tmp_path / "stopped"
    ranks = start(SHORT, tmp_path, "stopped", [out, tmp_path / "nowhere"], prepare=ask_the_second_to_stop)
    codes = [rank.wait() for rank in ranks]
    assert codes == [1, 143], ranks[0].said + ranks[1].said
    assert "stopped by another rank after step" in ranks[0].said
    assert "stopped by SIGTERM after step" in ranks[1].said
    assert not (tmp_path / "nowhere").exists()
    ranks = start([*SHORT, "--resume"], tmp_path, "resumed", [out] * 2)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said + ranks[1].said
    assert weights(out) == weights(tmp_path / "whole")
    assert metrics(out) == metrics(tmp_path / "whole")


def test_a_folder_in_use_ends_all_ranks_at_once(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "recipe.json").write_text("{}")
    ranks = start(SHORT, tmp_path, "taken", [out] * 2)
    assert [rank.wait(timeout=20) for rank in ranks] == [2, 2]
    assert all("there is a run in" in rank.said and "Traceback" not in rank.said for rank in ranks)
