"""The Rule of Iteration on the grad route: after any number of steps, plain operator and real block are equal."""

import copy
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import repopt
from repopt import Conv, Identity, Scales
from repopt.optim.closed_form import ClosedForm
from side_by_side import EXACT, apart, attached, backward, closed_adamw, loss_of, sgd, small_net, train, twins
from side_by_side import adamw as stock_adamw


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
    sizes = st.floats(-2, 2).map(lambda size: round(size, 6))  # a difference relative to 1e-313 says nothing
    numbers = st.lists(sizes, min_size=outputs, max_size=outputs)
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
    """The multiplier of an operator with its taps changed."""
    right = ClosedForm.factors

    def factors(self, name, like, rows):
        found = right(self, name, like, rows)
        return replace(found, taps=change(self.plan, name, found))

    return factors


def signed(plan, name, found):
    """s * |s| instead of s^2, at the taps that belong to the 3x3 branch alone."""
    return found.taps * plan.constants(name)["conv3x3"].sign().view(-1, 1, 1, 1)


def even(plan, name, found):
    """The right mean everywhere: dense, but blind to the branches."""
    return found.taps.mean(dim=(2, 3), keepdim=True).expand_as(found.taps).contiguous()


@pytest.mark.parametrize("change", [signed, even])
def test_with_a_wrong_multiplier_the_models_part(change, monkeypatch):
    net, plan, twin = twins()
    monkeypatch.setattr(ClosedForm, "factors", wrong_multiplier(change))
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


def asgd(params):
    return torch.optim.ASGD(params, lr=0.05, weight_decay=0.01, t0=2)


def both(make):
    """A plain net at work on its plan and the real blocks, each with its optimizer."""
    net, plan, twin = twins()
    ours = make(net.parameters())
    repopt.attach(ours, plan)
    return (net, ours), (twin, make(twin.parameters()))


@pytest.mark.parametrize("make", [sgd, lambda params: sgd(params, fused=True), asgd])
def test_two_steps_on_one_gradient_are_those_of_the_block(make):
    pairs = both(make)
    for model, optimizer in pairs:
        for step in range(10):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            optimizer.step()
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


@pytest.mark.parametrize("make", [sgd, asgd])
@pytest.mark.parametrize("zeroed", [True, False])
def test_an_operator_left_out_of_a_step_is_that_of_the_block(make, zeroed):
    """Its gradient is gone, or is still that of the step before."""
    pairs = both(make)
    for model, optimizer in pairs:
        for step in range(10):
            if zeroed or step % 2 == 0:
                optimizer.zero_grad()
                backward(model, step)
            if zeroed and step % 2:
                for param in model[3].parameters():
                    param.grad = None
            optimizer.step()
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


@pytest.mark.parametrize("make", [sgd, lambda params: sgd(params, foreach=True), asgd])
def test_a_gradient_after_a_step_is_what_the_step_was_handed(make):
    (net, ours), _ = both(make)
    backward(net)
    before = [param.grad.clone() for param in net.parameters()]
    ours.step()
    assert all(torch.equal(param.grad, grad) for param, grad in zip(net.parameters(), before, strict=True))


def test_a_step_that_fails_leaves_everything_for_the_next():
    pairs = both(sgd)
    for model, optimizer in pairs:
        backward(model)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = None
        with pytest.raises(TypeError):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = lr
        train(model, optimizer, 5)
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


def test_an_attached_optimizer_stays_what_it_was():
    """Its class, its options and its state are torch's: only the numbers in the buffer are the block's."""
    (net, ours), (_, theirs) = both(sgd)
    train(net, ours, 2)
    assert type(ours) is torch.optim.SGD
    assert {key for state in ours.state.values() for key in state} == {"momentum_buffer"}
    assert set(ours.param_groups[0]) - {"repopt"} == set(theirs.param_groups[0])


@pytest.mark.parametrize("rows", [4, 20_000])
def test_parameters_outside_the_plan_may_be_sparse_or_complex(rows):
    net, plan, _ = twins()
    table = nn.Embedding(rows, 4, sparse=True, dtype=torch.float64)
    phase = nn.Parameter(torch.ones(3, dtype=torch.cdouble))
    ours = torch.optim.SGD([*net.parameters(), *table.parameters(), phase], lr=0.5, momentum=0.9)
    repopt.attach(ours, plan)
    before = table.weight.detach().clone()
    for _ in range(2):
        ours.zero_grad()
        (table(torch.tensor([1])).sum() + phase.real.sum()).backward()
        backward(net)
        ours.step()
    assert torch.equal(table.weight[2], before[2])
    torch.testing.assert_close(table.weight[1], before[1] - 0.5 * (1 + 1.9))
    torch.testing.assert_close(phase.detach(), torch.full((3,), 1 - 0.5 * 2.9 + 0j, dtype=torch.cdouble))


def skipping(model, optimizer, overflows):
    """Steps under GradScaler, some of which it skips."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step, overflow in enumerate(overflows):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step) * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("dampenings", [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_a_first_step_that_was_skipped_is_still_to_come(dampenings):
    """Whatever the dampening was when the buffer was made."""
    net, plan, twin = twins()
    ours, theirs = (  # torch's own fused SGD would start from garbage
        sgd(model.parameters(), nesterov=False, dampening=dampenings[0], fused=model is net) for model in (net, twin)
    )
    repopt.attach(ours, plan)
    for model, optimizer in ((net, ours), (twin, theirs)):
        skipping(model, optimizer, [True])
        optimizer.param_groups[0]["dampening"] = dampenings[1]
        skipping(model, optimizer, [False, False, False])
    assert apart(net, twin) <= EXACT


def test_a_buffer_that_saw_no_step_is_neither_saved_nor_left_behind():
    net, plan, _ = twins()
    ours = sgd(net.parameters(), fused=True)
    handle = repopt.attach(ours, plan)
    skipping(net, ours, [True])
    assert not any("momentum_buffer" in state for state in ours.state_dict()["state"].values())
    skipping(net, ours, [True])
    handle.detach()
    train(net, ours, 1)
    assert net[0].weight.isfinite().all()


def test_a_buffer_that_is_none_is_a_first_step():
    (net, ours), (twin, theirs) = both(sgd)
    for param in net.parameters():
        ours.state[param]["momentum_buffer"] = None
    train(net, ours, 5)
    train(twin, theirs, 5)
    assert apart(net, twin) <= EXACT


def test_states_are_laid_out_as_their_weights():
    net, plan, _ = twins(small_net(torch.channels_last))
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    for param in net.parameters():
        ours.state[param]["momentum_buffer"] = torch.zeros(param.shape, dtype=param.dtype)
    train(net, ours, 1)
    assert all(ours.state[param]["momentum_buffer"].stride() == param.stride() for param in net.parameters())


def test_states_that_were_replaced_are_let_go():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    train(net, ours, 1)
    buffer = weakref.ref(ours.state[net[0].weight]["momentum_buffer"])
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(net, ours, 1)
    assert buffer() is None


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01, eps=1e-3)


@pytest.mark.parametrize("make", [sgd, asgd, adamw])
def test_max_norm_clips_as_torch_clips_the_blocks(make):
    net, plan, twin = twins()
    ours, theirs = make(net.parameters()), make(twin.parameters())
    repopt.attach(ours, plan, max_norm=0.5)
    clipped = []
    for step in range(10):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, step)
        before = [param.grad.clone() for param in net.parameters()]
        clipped.append(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)) > 0.5)
        ours.step()
        theirs.step()
        assert all(torch.equal(param.grad, grad) for param, grad in zip(net.parameters(), before, strict=True))
    assert any(clipped)
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize(("ours", "theirs"), [(attached(sgd), sgd), (closed_adamw, stock_adamw)])
def test_a_compiled_step_is_the_step(ours, theirs):
    net, plan, twin = twins()
    for model, optimizer in ((net, ours(net.parameters(), plan)), (twin, theirs(twin.parameters()))):
        step = torch.compile(optimizer.step, backend="eager") if model is net else optimizer.step
        for number in range(4):
            optimizer.zero_grad()
            backward(model, number)
            step()
    assert apart(net, twin) <= EXACT


def test_gradients_are_not_kept_alive():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    grad = weakref.ref(net[3].weight.grad)
    ours.zero_grad(set_to_none=True)
    assert grad() is None


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
