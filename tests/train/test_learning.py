"""Scales that are learned in the first part of a training, in one run folder."""

import dataclasses
import json
import signal
from functools import partial

import pytest
import torch

from interrupted import interrupt_in
from repopt.models import create_model
from repopt.plans.provenance import provenance
from repopt.plans.scales import Scales
from repopt.surgery.conversion import search_blocks
from repopt.train.checkpoint import load_checkpoint
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.methods import make_optimizer, make_subject
from repopt.train.recipe import Recipe, demo, freeze_step
from repopt.train.runs import load_run, run_recipe
from repopt.train.step import set_lr_
from repopt.train.stopping import DivergedError, StoppedError
from repopt.train.training import train_run
from train.program import TINY, Program, finished, metrics, run, weights

BASE = dataclasses.replace(demo(), epochs=3, batch_size=32, eval_every=1, warmup_epochs=0, freeze_at=0.5)
RULES = {
    "sgd": BASE,
    "adamw": dataclasses.replace(BASE, optimizer="AdamW", lr=1e-3, ema=0.9, clip=1.0, mixup=0.4, accumulate=2),
    "faster scales": dataclasses.replace(BASE, scale_lr=4.0),
}
SMALL = {"depths": (2, 1, 1, 1)}  # one identity
STEPS = 4  # an epoch
HANDOVER = 6  # in the middle of the second epoch


def learning(recipe=BASE, **fields):
    given = {"model": "repopt_vgg_nano", "data": "fake:128,4,16", "scales": "learn", "options": SMALL, **fields}
    return Job(method="repopt", recipe=recipe, **given)


def train(job, out, resume=False):
    return train_run(job, out, resume=resume, device="cpu", quiet=True)


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wholes")
    for rule, recipe in RULES.items():
        train(learning(recipe), folder / rule)
    return folder


def test_the_handover_of_these_tests_is_inside_an_epoch(wholes):
    summary = json.loads((wholes / "sgd" / "summary.json").read_text())
    assert summary["steps"] == 3 * STEPS
    assert freeze_step(BASE, STEPS) == HANDOVER


def test_a_run_records_the_parameters_of_the_plain_model(wholes):
    """Which the search model of its first part becomes."""
    plain = create_model("repopt_vgg_nano", num_classes=4, **SMALL)
    recorded = json.loads((wholes / "sgd" / "run.json").read_text())["parameters"]
    assert recorded == sum(param.numel() for param in plain.parameters())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("taken", [HANDOVER - 1, HANDOVER, HANDOVER + 1, 2 * STEPS])
def test_stopped_before_at_and_after_the_handover_and_resumed_the_run_ends_with_the_same_bits(
    taken, rule, wholes, tmp_path, monkeypatch
):
    out, train_on = tmp_path / "stopped", Trainer.train_on

    def stop_after(trainer, pixels, labels, epoch, number):
        train_on(trainer, pixels, labels, epoch, number)
        if epoch * STEPS + number + 1 == taken:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train_on", stop_after)
    with pytest.raises(StoppedError):
        train(learning(RULES[rule]), out)
    state = load_checkpoint(out, torch.device("cpu"))
    assert (state["scales"] is None) == (taken <= HANDOVER)
    monkeypatch.undo()
    train(learning(RULES[rule]), out, resume=True)
    assert weights(out) == weights(wholes / rule)
    assert metrics(out) == metrics(wholes / rule)
    for name in ("scales.jsonl", *(["model_ema.safetensors"] if RULES[rule].ema else [])):
        assert (out / name).read_bytes() == (wholes / rule / name).read_bytes()
    assert Scales.load(out / "scales.safetensors") == Scales.load(wholes / rule / "scales.safetensors")


def test_killed_inside_the_handover_and_resumed_the_run_ends_with_the_same_bits(tmp_path):
    way = ["train", *TINY, "--scales", "learn", "--freeze-at", "0.5"]
    whole, out = finished(*way, out=tmp_path / "whole"), tmp_path / "killed"
    for moment in ("freeze", "attach_as_is"):
        prepare = partial(interrupt_in, moment, signal.SIGKILL)
        resume = ["--resume"] * out.exists()
        program = Program(*way, "--out", out, *resume, log=tmp_path / "log", prepare=prepare, killed=True)
        assert program.wait() == -signal.SIGKILL, program.said
    code, said = run(*way, "--out", out, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert (weights(out), metrics(out)) == (weights(whole), metrics(whole))


def test_the_folder_holds_the_plain_model_and_the_scales_that_it_was_frozen_with(wholes, tmp_path):
    out = wholes / "sgd"
    scales = Scales.load(out / "scales.safetensors")
    model = load_run(out).model
    assert not search_blocks(model)
    assert set(scales["stage1.1.conv"]) == {"conv3x3", "conv1x1", "identity"}
    assert scales["stage1.1.conv"]["conv3x3"].unique().numel() > 1
    origin = provenance(scales)
    assert (origin.model, origin.epochs) == ("repopt_vgg_nano", 3)
    means = [json.loads(line)["scales"] for line in (out / "scales.jsonl").read_text().splitlines()]
    assert means[0] != means[1] != means[2] == means[3]  # at the start, and after each epoch
    assert run_recipe(out).freeze_at == 0.5
    fixed = dataclasses.replace(BASE, freeze_at=None, epochs=1)
    train(learning(fixed, scales=out / "scales.safetensors"), tmp_path / "again")


def test_an_epoch_s_record_counts_the_steps_before_and_after_the_handover(tmp_path, monkeypatch):
    counted, record = [], Trainer._train_record

    def counting(trainer, epoch, images_per_second):
        counted.append(int(trainer.step.totals.values[2]))
        return record(trainer, epoch, images_per_second)

    monkeypatch.setattr(Trainer, "_train_record", counting)
    train(learning(), tmp_path / "run")
    assert counted == [STEPS] * 3


@pytest.mark.parametrize("given", [{}, {"freeze_at": 0.5}, {"scale_lr": 1.0}])
def test_scales_are_learned_ten_times_as_fast_in_three_tenths_of_the_training_unless_said_otherwise(given, tmp_path):
    train(learning(dataclasses.replace(BASE, **{"freeze_at": None, "epochs": 1, **given})), tmp_path / "run")
    recipe = run_recipe(tmp_path / "run")
    assert {"freeze_at": recipe.freeze_at, "scale_lr": recipe.scale_lr} == {"freeze_at": 0.3, "scale_lr": 10.0, **given}


def test_faster_scales_take_longer_steps_and_nothing_else_does():
    def moved(factor):
        recipe = dataclasses.replace(BASE, scale_lr=factor, momentum=0.0)
        torch.manual_seed(0)
        subject = make_subject("repopt", create_model("repopt_vgg_nano", **SMALL), recipe, scales="learn")
        optimizer = make_optimizer(subject, recipe, 0.1)
        set_lr_(optimizer, 0.01)
        before = {name: param.clone() for name, param in subject.model.named_parameters()}
        for param in subject.model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        return {name: before[name] - param for name, param in subject.model.named_parameters()}

    plain, fast = moved(1.0), moved(8.0)
    scales = {name for name in plain if ".scales." in name}
    assert scales
    for name, step in plain.items():
        torch.testing.assert_close(fast[name], 8 * step if name in scales else step, rtol=1e-5, atol=1e-6)


def test_scales_that_are_never_frozen_are_merged_at_the_end(tmp_path):
    """OREPA's way: the run is a search, trained by the training's recipe."""
    recipe = dataclasses.replace(BASE, freeze_at=1.0, scale_lr=1.0)
    train(learning(recipe), tmp_path / "learned")
    search = dataclasses.replace(learning(dataclasses.replace(recipe, freeze_at=None), scales=None), method="search")
    train(search, tmp_path / "search")
    assert weights(tmp_path / "learned") == weights(tmp_path / "search")


def test_a_training_that_diverged_before_the_handover_says_so_there(tmp_path, monkeypatch):
    """On CUDA losses are looked at now and then alone, so the handover may come first."""
    monkeypatch.setattr(Trainer, "_heed", lambda self, stop, all_ranks: None)
    with pytest.raises(DivergedError, match="the loss was not finite at step"):
        train(learning(dataclasses.replace(BASE, lr=1e30)), tmp_path / "run")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            dataclasses.replace(learning(scales=None), method="search"),
            "^freeze_at is for scales .*: a search learns them to its end, so give --freeze-at None$",
        ),
        (
            learning(dataclasses.replace(BASE, freeze_at=None, scale_lr=2.0), scales="depth"),
            "^scale_lr is for scales .*: give --scales learn, or --scale-lr None$",
        ),
        (
            dataclasses.replace(learning(dataclasses.replace(BASE, scale_lr=2.0), scales=None), method="sgd"),
            "^freeze_at and scale_lr are .*: give --method repopt --scales learn, or --freeze-at None --scale-lr None$",
        ),
        (learning(scales="ones"), "^freeze_at is for scales .*: give --scales learn, or --freeze-at None$"),
        (dataclasses.replace(learning(), method="csla"), "are for the method repopt, not for csla"),
        (learning(dataclasses.replace(BASE, decay_identity=False)), "whose diagonal is decayed"),
        (learning(dataclasses.replace(BASE, rules="iteration")), "scales that are learned follow both rules"),
        (learning(dataclasses.replace(BASE, optimizer="Lion")), "an attached optimizer, which Lion cannot be: take an"),
    ],
)
def test_what_cannot_be_learned_is_said(job, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        train(job, tmp_path / "run")


def test_a_recipe_of_an_earlier_version_has_scales_that_learn_as_fast_as_the_rest(tmp_path):
    recipe = dataclasses.replace(BASE, epochs=1, freeze_at=None, scale_lr=1.0)
    train(dataclasses.replace(learning(recipe, scales=None), method="sgd"), tmp_path / "run")


def test_loaded_weights_have_no_branches_to_learn_the_scales_of():
    with pytest.raises(ValueError, match="come with kernels of their own, which are drawn: leave --weights out"):
        make_subject("repopt", torch.nn.Linear(2, 2), Recipe(), scales="learn", drawn=False)
    with pytest.raises(ValueError, match="freeze_at must be more than 0 and at most 1, not 0"):
        Recipe(freeze_at=0.0)
