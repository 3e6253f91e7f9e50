"""The Rule of Iteration on the grad route: after any number of steps, plain operator and real block are equal."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import repopt
from repopt import Conv, Identity, Scales
from repopt.algebra.multiplier import Multiplier
from side_by_side import EXACT, apart, backward, sgd, train, twins


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape_sign_and_hyper_parameter(data):
    groups = data.draw(st.sampled_from([1, 2, 3]), "groups")
    inputs, outputs = (groups * data.draw(st.integers(1, 3), what) for what in ("inputs", "outputs"))
    taps, dilation = data.draw(st.sampled_from([1, 3, 5]), "taps"), data.draw(st.integers(1, 2), "dilation")
    padding = data.draw(st.integers(0, dilation * (taps - 1) // 2), "padding")
    dims = data.draw(st.integers(1, 3), "dims")
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    net = kind(inputs, outputs, taps, data.draw(st.integers(1, 2), "stride"), padding, dilation, groups)
    smaller = data.draw(st.sampled_from([size for size in (1, 3, 5) if size <= taps]), "smaller")
    bare = repopt.plan(net, {"^$": [Conv(taps), Conv(smaller), Identity()]})
    numbers = st.lists(st.floats(-2, 2), min_size=outputs, max_size=outputs)
    scales = {
        branch: torch.tensor(data.draw(numbers), dtype=torch.float64)
        for branch in bare.blocks[""].branches
        if branch != "identity"
    }
    momentum = data.draw(st.floats(0, 0.95), "momentum")
    options = {
        "lr": data.draw(st.floats(1e-4, 0.02), "lr"),
        "momentum": momentum,
        "weight_decay": data.draw(st.floats(0, 0.1), "decay"),
        "nesterov": momentum > 0 and data.draw(st.booleans(), "nesterov"),
        "maximize": data.draw(st.booleans(), "maximize"),
    }
    plan = bare.with_scales(Scales({"": scales}))
    report = repopt.verify(net, plan, lambda params: torch.optim.SGD(params, **options), steps=20)
    assert report.worst <= 1e-11  # a drawn kernel may be near zero, and the difference is relative to it


def wrong_multiplier(change):
    """A plan's multiplier with its taps changed."""
    right = repopt.Plan.multiplier_of

    def multiplier(self, name, weight, degree=1):
        found = right(self, name, weight, degree)
        return Multiplier(shape=found.shape, taps=change(self, name, found), diagonals=found.diagonals)

    return multiplier


def signed(plan, name, found):
    """s * |s| instead of s^2, at the taps that belong to the 3x3 branch alone."""
    return found.taps * plan.constants(name)["conv3x3"].sign().view(-1, 1, 1, 1)


def even(plan, name, found):
    """The right mean everywhere: dense, but blind to the branches."""
    return found.taps.mean(dim=(2, 3), keepdim=True).expand_as(found.taps)


@pytest.mark.parametrize("change", [signed, even])
def test_with_a_wrong_multiplier_the_models_part(change, monkeypatch):
    net, plan, twin = twins()
    monkeypatch.setattr(repopt.Plan, "multiplier_of", wrong_multiplier(change))
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    train(net, ours, 20)
    train(twin, sgd(twin.parameters()), 20)
    assert apart(net, twin) > 1e-2


def test_without_attach_the_models_part():
    net, _, twin = twins()
    train(net, sgd(net.parameters()), 20)
    train(twin, sgd(twin.parameters()), 20)
    assert apart(net, twin) > 1e-2


@pytest.mark.parametrize("implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_second_step_on_the_same_gradient_is_refused(implementation):
    net, plan, _ = twins()
    ours = sgd(net.parameters(), **implementation)
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    with pytest.raises(RuntimeError, match="the gradient of '0' was multiplied for an earlier step"):
        ours.step()
    train(net, ours, 1)


def test_a_dead_channel_does_not_hide_a_second_step():
    """The first channel of the first operator has no gradient, or the whole of it has none."""
    for dead in (slice(0, 1), slice(None)):
        net, plan, _ = twins()
        ours = sgd(net.parameters())
        repopt.attach(ours, plan)
        backward(net)
        net[0].weight.grad[dead] = 0
        ours.step()
        with pytest.raises(RuntimeError, match="was multiplied for an earlier step"):
            ours.step()


def test_a_step_after_a_failed_one_is_refused_until_there_is_a_new_gradient():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.param_groups[0]["momentum"] = None
    with pytest.raises(TypeError):
        ours.step()
    ours.param_groups[0]["momentum"] = 0.9
    with pytest.raises(RuntimeError, match="was multiplied for an earlier step"):
        ours.step()


def test_gradients_are_not_kept_alive():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    grad = weakref.ref(net[3].weight.grad)
    ours.zero_grad(set_to_none=True)
    assert grad() is None


def test_a_gradient_written_without_a_new_version_is_a_new_one():
    """As the replay of a CUDA graph does, or whoever writes into its memory."""
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    version = net[0].weight.grad._version
    for param in net.parameters():
        param.grad.numpy()[...] = 1.0
    assert net[0].weight.grad._version == version
    ours.step()


def test_a_step_on_zeroed_gradients_is_fine():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    ours.zero_grad(set_to_none=False)
    ours.step()


def test_a_model_converted_after_attach_is_trained_in_its_new_precision():
    net, plan, twin = twins()
    net.float()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    net.double()
    net.load_state_dict(repopt.merge(twin).state_dict())
    train(net, ours, 20)
    train(twin, sgd(twin.parameters()), 20)
    assert apart(net, twin) <= EXACT
