"""Closed forms: one pair of moments, and still the real block."""

import copy
import pickle
from dataclasses import replace

import pytest
import pytorch_optimizer
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim import RepOptimizer, adam
from repopt.optim.closed_form import ClosedForm
from repopt.verification.cases import mixed_sign_scales
from side_by_side import EXACT, adamw, apart, closed_adamw, loss_of, train, twins


def test_lion_is_lion():
    """Another library's, on the real block."""
    net = nn.Conv2d(6, 6, 3, padding=1)
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    report = repopt.verify(
        net,
        plan,
        lambda params, plan: repopt.optim.Lion(params, plan, lr=0.01, weight_decay=0.1),
        reference=lambda params: pytorch_optimizer.Lion(params, lr=0.01, weight_decay=0.1, weight_decouple=True),
    )
    assert report.worst <= EXACT


@pytest.mark.parametrize("rule", ["AdamW", "Adam", "Lion"])
def test_maximizing_is_minimizing_the_negative(rule):
    net, plan, _ = twins()
    down, up = copy.deepcopy(net), copy.deepcopy(net)
    make = getattr(repopt.optim, rule)
    for model, sign in ((down, 1), (up, -1)):
        optimizer = make(model.parameters(), plan.on(model), lr=0.01, maximize=sign < 0)
        for step in range(5):
            optimizer.zero_grad()
            (sign * loss_of(model, step)).backward()
            optimizer.step()
    assert torch.equal(down[3].weight, up[3].weight)


# What breaks the equality


def part_from(monkeypatch, attribute, owner, wrong):
    net, plan, twin = twins()
    monkeypatch.setattr(owner, attribute, wrong)
    train(net, closed_adamw(net.parameters(), plan), 20)
    train(twin, adamw(twin.parameters()), 20)
    return apart(net, twin)


def test_signed_instead_of_absolute_scales_part_the_models(monkeypatch):
    """s^2 m / (s root + eps): a negative scale turns the step around."""
    right = ClosedForm.factors

    def signed(self, name, like, rows):
        signs = [constant.sign().to(like) for constant in self.plan.constants(name).values()]
        return [
            replace(entries, values=entries.values * sign.view(entries.values.shape))
            for entries, sign in zip(right(self, name, like, rows), signs, strict=True)
        ]

    assert part_from(monkeypatch, "factors", ClosedForm, signed) > 1e-2


def test_an_eps_outside_the_sum_parts_the_models(monkeypatch):
    """m / (root + eps) times the multiplier of degree 0: right at eps = 0, wrong at eps = 1e-3."""

    def outside(entries, first, root, rate, norm, eps):
        return entries.read(first) * (entries.values * rate), entries.read(root) * norm + eps

    assert part_from(monkeypatch, "fraction", adam, outside) > 1e-3


# What a user meets


def test_they_keep_nothing_beyond_the_stock_optimizers_state_but_the_scales():
    net = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, scales="ones")
    states = []
    for optimizer in (repopt.optim.AdamW(net.parameters(), bare), torch.optim.AdamW(net.parameters())):
        optimizer.zero_grad()
        net(torch.ones(1, 64, 4, 4)).sum().backward()
        optimizer.step()
        states.append({key: (value.shape, value.dtype) for key, value in optimizer.state[net.weight].items()})
        if isinstance(optimizer, RepOptimizer):
            assert optimizer.nbytes == (64 + 64 + 1) * 4
    assert states[0] == states[1]


@pytest.mark.parametrize("copying", [copy.deepcopy, pickle.dumps])
def test_they_are_not_copied_or_pickled(copying):
    net, plan, _ = twins()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copying(closed_adamw(net.parameters(), plan))


def test_they_are_not_attached():
    net, plan, _ = twins()
    with pytest.raises(ValueError, match=r"repopt\.optim\.AdamW already trains the imagined blocks"):
        repopt.attach(closed_adamw(net.parameters(), plan), plan)


def test_coupled_decay_points_to_the_branch_route():
    net, plan, _ = twins()
    with pytest.raises(ValueError, match=r"no closed form: .* takes the branch route"):
        repopt.optim.Adam(net.parameters(), plan, weight_decay=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr must be a finite number of at least 0, not -1.0"),
        ({"eps": float("nan")}, "eps must be a finite number of at least 0, not nan"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers of at least 0 and below 1, not \(0\.9, 1\.0\)"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    net, plan, _ = twins()
    with pytest.raises(ValueError, match=words):
        repopt.optim.AdamW(net.parameters(), plan, **options)


def test_a_plan_is_what_they_take():
    with pytest.raises(TypeError, match=r"what repopt\.plan\(model, \.\.\.\) returns, not a float"):
        repopt.optim.AdamW(nn.Linear(1, 1).parameters(), 0.1)


def test_a_weight_that_they_do_not_hold_is_named():
    net, plan, _ = twins()
    with pytest.raises(ValueError, match="does not hold the weight of '3'"):
        repopt.optim.AdamW(net[0].parameters(), plan)


def test_a_sparse_gradient_is_refused():
    net, plan, _ = twins()
    table = nn.Embedding(4, 4, sparse=True)
    optimizer = repopt.optim.AdamW([*net.parameters(), *table.parameters()], plan)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="dense gradients only"):
        optimizer.step()


def test_coupled_decay_of_a_single_group_is_refused_too():
    net, plan, _ = twins()
    groups = [{"params": list(net.parameters()), "weight_decay": 0.3}]
    with pytest.raises(ValueError, match="no closed form"):
        repopt.optim.Adam(groups, plan)
    optimizer = repopt.optim.Adam(net.parameters(), plan)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    loss_of(net).backward()
    with pytest.raises(ValueError, match="no closed form"):
        optimizer.step()


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"capturable": True}])
@pytest.mark.parametrize("rule", [repopt.optim.AdamW, repopt.optim.Adam, repopt.optim.Lion])
def test_steps_that_a_grad_scaler_skips_change_nothing_not_even_the_first(rule, options):
    net, plan, _ = twins()
    plain, scaled = copy.deepcopy(net), copy.deepcopy(net)
    decay = {} if rule is repopt.optim.Adam else {"weight_decay": 0.1}
    train(plain, rule(plain.parameters(), plan.on(plain), lr=0.01, **decay), 5)
    optimizer = rule(scaled.parameters(), plan.on(scaled), lr=0.01, **decay, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in (None, 0, 1, 2, None, 3, 4):
        optimizer.zero_grad()
        loss = loss_of(scaled, step or 0)
        scaler.scale(loss * float("inf") if step is None else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(scaled[3].weight, plain[3].weight, rtol=1e-12, atol=1e-13)


def test_a_model_converted_between_steps_is_trained_in_its_new_precision():
    net, plan, _ = twins()
    net.float()
    optimizer = closed_adamw(net.parameters(), plan)
    net(torch.ones(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    net.double()
    for state in optimizer.state.values():
        state.update({key: value.double() for key, value in state.items() if key != "step"})
    train(net, optimizer, 1)
    factors = [factors for _, pieces in optimizer._form._arranged[0].one_by_one for _, factors in pieces if factors]
    assert {entries.values.dtype for branches in factors for entries in branches} == {torch.float64}
