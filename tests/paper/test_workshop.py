"""Runs are trained once, go on where they were left, and are shared between processes."""

import dataclasses
import json
import time

import pytest
import torch

import repopt
from elsewhere import Elsewhere, hold, hold_and_leave, hold_device, train
from made_up import small_job
from paper.workshop import FIGURES, Workshop, _name, figures_of
from repopt.plans.scales import Scales
from repopt.train.recipe import Recipe
from repopt.train.stopping import DivergedError

# another value than the default, for each field
OTHER = {
    "freeze_at": 0.1,
    "epochs": 3,
    "batch_size": 8,
    "lr": 0.2,
    "scale_lr": 2.0,
    "lr_batch": 8,
    "warmup_epochs": 1,
    "warmup_lr": 0.01,
}
OTHER |= {"optimizer": "AdamW", "momentum": 0.8, "nesterov": False, "weight_decay": 1e-4, "decay_identity": False}
OTHER |= {
    "label_smoothing": 0.2,
    "clip": 1.0,
    "mixup": 0.4,
    "dropout": 0.1,
    "ema": 0.9,
    "accumulate": 2,
    "size": 24,
    "crop_padding": 2,
}
OTHER |= {"resized_crop": (0.5, 1.0), "flip": False, "randaugment": (2, 9), "color_jitter": 0.4, "erasing": 0.1}
OTHER |= {"kernel": "paper", "identity": "one", "rules": "iteration", "start": "paper", "precision": "bf16"}
OTHER |= {
    "channels_last": True,
    "compile": True,
    "tune": True,
    "graph": True,
    "eval_every": 2,
    "eval_size": 48,
    "eval_batch": 100,
}
OTHER |= {
    "freeze_at": 0.1,
    "workers": 2,
    "seed": 1,
    "randaugment_by": "torchvision",
    "erasing_with": "mean",
    "eval_share": 0.875,
}
LONG = small_job(epochs=3, images=320, dropout=0.3)


def contents(folder):
    """The files of a folder, locks aside, with when they were written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" and path.name != ".lock"]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def free(workshop, name):
    with workshop.claim(name) as mine:
        return mine


def with_scales(scales):
    return dataclasses.replace(small_job(), method="repopt", scales=Scales(scales))


@pytest.fixture
def workshop(tmp_path):
    return Workshop(folder=tmp_path / "runs", device="cpu")


def test_a_job_is_trained_once(workshop):
    first = workshop.run(small_job())
    before = contents(workshop.folder)
    assert workshop.run(small_job()) == first
    assert contents(workshop.folder) == before


def test_a_run_keeps_its_figures_but_not_its_weights(workshop):
    run = workshop.run(small_job(lr=0.2))
    kept = {path.name for path in run.iterdir()}
    assert kept >= {"recipe.json", "run.json", "metrics.jsonl", "summary.json"}
    assert not kept & {"model.safetensors", "checkpoint.pt", "checkpoint.previous.pt"}
    figures = figures_of(run)
    assert tuple(figures) == FIGURES
    for name in ("train_accuracy", "val_accuracy"):
        assert figures[name] == metrics(run)[-1][name] is not None
    asked = ("epochs", "batch_size", "lr", "kernel", "identity", "precision", "train_images", "size")
    assert [figures[name] for name in asked] == [1, 16, 0.2, "authors", "searched", "fp32", 32, 16]


def test_a_run_of_before_has_figures_but_for_its_training_accuracy(workshop):
    run = workshop.run(small_job())
    summary = json.loads((run / "summary.json").read_text())
    del summary["train_accuracy"]
    (run / "summary.json").write_text(json.dumps(summary))
    figures = figures_of(run)
    assert (figures["train_accuracy"], figures["val_accuracy"]) == (None, summary["val_accuracy"])


def test_a_run_with_weights_has_a_folder_of_its_own(workshop):
    """A finished run stays what rows have quoted."""
    without = workshop.run(small_job())
    before = contents(without)
    run = workshop.run(small_job(), weights=True)
    assert run != without
    assert contents(without) == before
    model = repopt.create_model(run)
    assert sum(param.numel() for param in model.parameters()) == figures_of(run)["parameters"]
    before = contents(workshop.folder)
    assert (workshop.run(small_job()), workshop.run(small_job(), weights=True)) == (without, run)
    assert contents(workshop.folder) == before


def test_a_search_gives_its_scales(workshop):
    job = dataclasses.replace(small_job(lr=1.0), method="search")
    scales = Scales.load(workshop.run(job) / "scales.safetensors")
    planned = repopt.plan(repopt.create_model("repopt_vgg_nano"), scales=scales)
    start = Scales.depth_init(planned)
    assert any(not torch.equal(scales[name]["conv3x3"], start[name]["conv3x3"]) for name in planned.operators)
    before = contents(workshop.folder)
    again = Scales.load(workshop.run(job) / "scales.safetensors")
    assert all(torch.equal(again[name]["conv3x3"], scales[name]["conv3x3"]) for name in planned.operators)
    assert contents(workshop.folder) == before


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Recipe)])
def test_no_two_recipes_share_a_run(field):
    job = dataclasses.replace(small_job(), recipe=Recipe())
    other = dataclasses.replace(job, recipe=dataclasses.replace(Recipe(), **{field: OTHER[field]}))
    assert _name(other) != _name(job) == _name(dataclasses.replace(job, recipe=Recipe()))


@pytest.mark.parametrize(
    "change",
    [
        {"method": "repvgg"},
        {"model": "repopt_vgg_a0"},
        {"data": "fake:33,4,16"},
        {"limit": 16},
        {"options": {"strides": (2, 1, 2, 1, 1)}},
        {"options": {"strides": (2, 2, 1, 2, 1)}},
    ],
)
def test_no_two_jobs_share_a_run(change):
    assert _name(dataclasses.replace(small_job(), **change)) != _name(small_job())


def test_no_two_scales_share_a_run():
    ones, almost = torch.ones(4), torch.tensor([1, 1, 1, 1 + 2**-23])
    scales = [
        {},
        {"a": {"conv3x3": ones}},
        {"b": {"conv3x3": ones}},
        {"a": {"conv1x1": ones}},
        {"a": {"conv3x3": almost}},
        {"a": {"conv3x3": ones, "identity": ones}},
        {"a": {"conv3x3": ones}, "b": {"conv3x3": ones}},
    ]
    assert len({_name(with_scales(each)) for each in scales}) == len(scales)
    named = Scales({"a": {"conv3x3": ones}}, {"source": "elsewhere"})
    assert _name(dataclasses.replace(small_job(), method="repopt", scales=named)) == _name(with_scales(scales[1]))


def test_two_jobs_that_differ_in_their_scales_have_folders_of_their_own(workshop):
    planned = repopt.plan(repopt.create_model("repopt_vgg_nano"))
    runs = [workshop.run(with_scales(Scales.constant(planned, value))) for value in (1.0, 0.5)]
    assert runs[0] != runs[1]
    assert [Scales.load(run / "scales.safetensors")["stage0.conv"]["conv1x1"][0] for run in runs] == [1.0, 0.5]


def test_a_run_whose_process_was_killed_goes_on_where_it_was_left(workshop, tmp_path):
    whole = Workshop(folder=tmp_path / "whole", device="cpu").run(LONG, weights=True)
    killed = Elsewhere(train, workshop.folder, LONG, True)
    killed.wait_for(lambda: any(workshop.folder.glob("*/checkpoint.pt")))
    killed.kill()
    (left,) = (path.parent for path in workshop.folder.glob("*/recipe.json"))
    first = metrics(left)[0]
    assert not (left / "summary.json").exists()
    run = workshop.run(LONG, weights=True)
    assert run == left
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [record["epoch"] for record in metrics(run)] == [1, 2, 3]
    assert metrics(run)[0] == first  # with the seconds that the killed process took: the epoch was not trained again


def test_a_run_that_left_no_checkpoint_begins_anew(workshop):
    run = workshop.run(small_job())
    accuracy = figures_of(run)["val_accuracy"]
    (run / "summary.json").unlink()
    with pytest.warns(UserWarning, match="has no checkpoint: the run starts over"):
        assert workshop.run(small_job()) == run
    assert figures_of(run)["val_accuracy"] == accuracy
    assert [record["epoch"] for record in metrics(run)] == [1]


@pytest.mark.parametrize("weights", [False, True])
def test_two_processes_that_ask_for_a_run_at_once_train_it_once(workshop, weights):
    """Whether or not the first one keeps its weights."""
    other = Elsewhere(train, workshop.folder, LONG, weights)
    other.wait_for(lambda: any(workshop.folder.glob("*/recipe.json")))
    run = workshop.run(LONG)
    before = contents(workshop.folder)
    other.wait()
    assert [record["epoch"] for record in metrics(run)] == [1, 2, 3]
    assert [path.parent for path in workshop.folder.glob("*/summary.json")] == [run]
    assert contents(workshop.folder) == before


def test_a_claim_is_one_processs_until_it_dies(workshop):
    other = Elsewhere(hold, workshop.folder, "row")
    other.wait_for_begin()
    with workshop.claim("row") as mine, workshop.claim("another row") as free:
        assert (mine, free) == (False, True)
    other.kill()
    with workshop.claim("row") as mine:
        assert mine
    with workshop.claim("row") as again:
        assert again


def test_who_waits_for_a_claim_has_it_when_the_other_is_done(workshop, tmp_path):
    other = Elsewhere(hold_and_leave, workshop.folder, "row", tmp_path / "done")
    other.wait_for_begin()
    with workshop.claim("row", wait=True) as mine:
        assert mine
        assert (tmp_path / "done").exists()
    other.wait()


def test_auto_takes_cuda_where_there_is_one(tmp_path):
    there = "cuda" if torch.cuda.is_available() else "cpu"
    assert Workshop(folder=tmp_path).chosen_device == torch.device(there)
    assert Workshop(folder=tmp_path, device="cpu").chosen_device == torch.device("cpu")


def test_a_training_that_diverged_is_not_tried_again_and_a_search_says_that_it_was_one(workshop):
    diverging = small_job(lr=1e30, epochs=2, images=64)
    for job, begin in ((diverging, "the "), (dataclasses.replace(diverging, method="search"), "in the search, the ")):
        with pytest.raises(DivergedError, match=f"^{begin}") as first:
            workshop.run(job)
        before = contents(workshop.folder)
        with pytest.raises(DivergedError) as again:
            workshop.run(job)
        assert str(again.value) == str(first.value)
        assert contents(workshop.folder) == before
    assert not list(workshop.folder.glob("*/checkpoint.pt"))


def test_what_is_timed_has_the_device_alone(workshop):
    job = small_job()
    with workshop.alone():
        other = Elsewhere(train, workshop.folder, job, False)
        other.wait_for(lambda: not free(workshop, _name(job)))  # it is at the run
        time.sleep(3)  # in which it would have begun
        assert not list(workshop.folder.glob("*/recipe.json"))
    other.wait()
    assert list(workshop.folder.glob("*/summary.json"))


def test_what_is_timed_waits_for_a_training(workshop):
    other = Elsewhere(train, workshop.folder, LONG, False)
    other.wait_for(lambda: any(workshop.folder.glob("*/recipe.json")))
    with workshop.alone():
        assert list(workshop.folder.glob("*/summary.json"))
    other.wait()


def test_who_waits_to_have_the_device_alone_is_let_through_before_who_came_later(workshop, tmp_path):
    order = tmp_path / "order"
    with workshop.sharing():
        timed = Elsewhere(hold_device, workshop.folder, "alone", order)
        timed.wait_for(lambda: not free(workshop, "timing"))
        later = Elsewhere(hold_device, workshop.folder, "sharing", order)
        later.wait_for_begin()
        time.sleep(0.3)  # in which it would have had its share
        assert not order.exists()
    timed.wait()
    later.wait()
    assert order.read_text().split() == ["alone", "sharing"]


def test_a_run_with_weights_serves_those_who_need_none(workshop):
    job = small_job()
    run = workshop.run(job, weights=True)
    assert workshop.run(job) == run
    assert (run / "model.safetensors").exists()


def test_a_run_that_diverged_is_not_replaced_by_one_with_weights(workshop):
    job = small_job(lr=1e30, epochs=2, images=64)
    with pytest.raises(DivergedError):
        workshop.run(job)
    kept = workshop.folder / f"{_name(job)}-weights"
    kept.mkdir()
    (kept / "summary.json").touch()  # as if another attempt had passed
    with pytest.raises(DivergedError):
        workshop.run(job)


def test_what_a_killed_process_did_not_clear_away_is_cleared_later(workshop):
    run = workshop.run(small_job())
    large = {"checkpoint.pt", "checkpoint.previous.pt", "model.safetensors"}
    for name in large:
        (run / name).touch()
    assert workshop.run(small_job()) == run
    assert not {path.name for path in run.iterdir()} & large
