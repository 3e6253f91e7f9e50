"""Quantization-aware training: by the run's optimizer, and with its multipliers where they are asked for."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import repopt
from made_up import small_job
from repopt.data import load_data
from repopt.quantize import QuantizeJob, quantize_run
from repopt.train.recipe import demo
from repopt.train.training import train_run

pytest.importorskip("torchao", reason="needs the extra int8")

from repopt.quantize.pt2e import prepare
from repopt.quantize.qat import qat_recipe, quantization_aware
from repopt.quantize.setting import Int8


def weights_after(lr, scale=None, trained_by=None, batch=16, unused=False):
    """A convolution in front of a frozen classifier, after QAT; beside another that the forward pass skips, or not."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    net[4].requires_grad_(False)
    if unused:
        net[1].unused = nn.Conv2d(8, 8, 3)
    scales = {name: {"conv3x3": scale} for name in ("0", "1.unused")[: 1 + unused]}
    plan = None if scale is None else repopt.plan(net, {"^0$|unused$": [repopt.Conv(3)]}, scales=scales)
    recipe = dataclasses.replace(
        qat_recipe(trained_by or demo(), epochs=1, lr=lr), batch_size=batch, lr_batch=batch, weight_decay=0.0
    )
    data = load_data("digits", limit=64)
    program = quantization_aware(net, data, recipe, Int8(), device=torch.device("cpu"), plan=plan, quiet=True)
    return next(each for name, each in program.state_dict().items() if each.ndim == 4)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Lion"])
def test_it_steps_by_the_optimizer_that_the_run_was_trained_with(optimizer):
    stepped = set()
    hook = register_optimizer_step_post_hook(lambda each, args, kwargs: stepped.add(type(each).__name__))
    try:
        weights_after(None, trained_by=dataclasses.replace(demo(), optimizer=optimizer, lr=0.001))
    finally:
        hook.remove()
    assert stepped == {optimizer}


@pytest.mark.slow
def test_a_batch_larger_than_the_data_shrinks():
    """To the 64 images that there are, and the learning rate with it."""
    torch.testing.assert_close(weights_after(0.01, batch=128), weights_after(0.005, batch=64))


@pytest.mark.slow
def test_an_operator_that_the_model_never_applies_has_no_part_in_it():
    assert torch.equal(weights_after(0.01, scale=2.0, unused=True), weights_after(0.01, scale=2.0))


class FrozenNorm(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(False)


def with_a_norm_twice(norm):
    return nn.Sequential(norm, nn.Conv2d(3, 3, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))


def test_a_norm_that_measures_twice_is_refused_before_the_training():
    prepare(with_a_norm_twice(FrozenNorm(3)), torch.zeros(2, 3, 8, 8), Int8(), training=True)
    net = with_a_norm_twice(nn.BatchNorm2d(3))
    with pytest.raises(RuntimeError, match=r"it applies a batch norm more than once\): calibrate it by ONNX Runtime"):
        prepare(net, torch.zeros(2, 3, 8, 8), Int8(), training=True)


@pytest.mark.slow
def test_a_multiplier_of_four_is_four_times_the_learning_rate():
    once, four_times = weights_after(0.01), weights_after(0.04)
    assert not torch.equal(once, four_times)
    torch.testing.assert_close(weights_after(0.01, scale=2.0), four_times)


def test_multipliers_are_for_the_training_of_a_repopt_run(tmp_path):
    with pytest.raises(ValueError, match="give --method qat as well"):
        QuantizeJob(multipliers=True)
    run = tmp_path / "run"
    train_run(dataclasses.replace(small_job(), method="sgd", scales=None), run, device="cpu", quiet=True)
    with pytest.raises(ValueError, match="multipliers are for a run of repopt"):
        quantize_run(run, QuantizeJob(method="qat", multipliers=True, epochs=1), quiet=True)
    without = dataclasses.replace(small_job(rules="initialization"), method="repopt", scales="ones")
    train_run(without, tmp_path / "without", device="cpu", quiet=True)
    with pytest.raises(ValueError, match="was trained without multipliers"):
        quantize_run(tmp_path / "without", QuantizeJob(method="qat", multipliers=True, epochs=1), quiet=True)
