"""A state goes with its scales: saved, it continues to the last bit; with other scales it is refused."""

import copy
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import repopt
from optim.resume import started
from repopt import Conv, Identity, Linear
from repopt.verification.cases import mixed_sign_scales
from side_by_side import EXACT, WAYS, apart, attached, planned, sgd, small_net, train, twins

TESTS = Path(__file__).parents[1]


def test_resumed_in_a_new_process_the_weights_are_the_same_to_the_last_bit(tmp_path):
    whole, halfway = {}, {}
    for way in WAYS:
        net, optimizer = started(way)
        train(net, optimizer, 20)
        halfway[way] = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
        train(net, optimizer, 30, first=20)
        whole[way] = net.state_dict()
    torch.save(halfway, tmp_path / "checkpoint.pt")
    done = subprocess.run(
        [sys.executable, TESTS / "optim" / "resume.py", tmp_path / "checkpoint.pt", tmp_path / "resumed.pt"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for way, weights in torch.load(tmp_path / "resumed.pt", weights_only=True).items():
        assert all(torch.equal(weights[name], value) for name, value in whole[way].items()), way


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def trained(way, steps=3):
    net, plan, _ = twins()
    optimizer = way.start(net.parameters(), plan)
    train(net, optimizer, steps)
    return net, plan, optimizer


def other_scales(net):
    bare = repopt.plan(net, {"0|3": [Conv(3), Conv(1), Identity()]})
    return bare.with_scales(mixed_sign_scales(bare, seed=7))


def test_a_state_of_other_scales_is_refused_and_nothing_is_changed(way):
    net, _, optimizer = trained(way)
    state = copy.deepcopy(optimizer.state_dict())
    fresh = way.start(net.parameters(), other_scales(net))
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(ValueError, match="made with other scales, branches or another route"):
        fresh.load_state_dict(state)
    assert str(before) == str(fresh.state_dict())


def test_a_state_of_other_branches_or_of_fewer_operators_is_refused(way):
    net, plan, optimizer = trained(way)
    scales = {"3": {"conv3x3": plan.scales["3"]["conv3x3"], "conv1x1": plan.scales["3"]["conv1x1"]}}
    fewer = repopt.plan(net, {"3": [Conv(3), Conv(1), Identity()]}, scales)
    with pytest.raises(ValueError, match="made with other scales"):
        way.start(net.parameters(), fewer).load_state_dict(optimizer.state_dict())


def test_the_state_of_plain_training_is_refused(way):
    net, plan, _ = twins()
    plain = way.theirs(net.parameters())
    train(net, plain, 2)
    with pytest.raises(ValueError, match="carries no fingerprint of scales"):
        way.start(net.parameters(), plan).load_state_dict(plain.state_dict())


def test_a_plain_state_is_refused_though_all_its_entries_are_alike():
    """As after a step on inputs of ones: what an optimizer's constructor leaves is alike, too."""
    net = nn.Linear(4, 1, bias=False)
    plan = repopt.plan(net, {"^$": [Linear(), Linear()]}, scales="ones")
    plain = sgd(net.parameters(), weight_decay=0)
    net(torch.ones(1, 4)).sum().backward()
    plain.step()
    with pytest.raises(ValueError, match="carries no fingerprint of scales"):
        attached(sgd)(net.parameters(), plan).load_state_dict(plain.state_dict())


def test_the_empty_state_of_a_plain_optimizer_starts_anew_and_keeps_the_stamp(way):
    net, plan, _ = twins()
    start = copy.deepcopy(net.state_dict())
    fresh, used = way.start(net.parameters(), plan), way.start(net.parameters(), plan)
    empty = copy.deepcopy(way.theirs(net.parameters()).state_dict())
    train(net, fresh, 4)
    expected = net[3].weight.detach().clone()
    train(net, used, 2)
    net.load_state_dict(start)
    used.load_state_dict(empty)
    train(net, used, 4)
    torch.testing.assert_close(net[3].weight, expected, rtol=EXACT, atol=EXACT)
    saved = copy.deepcopy(used.state_dict())
    assert {group["repopt"] for group in saved["param_groups"]} == {fresh.param_groups[0]["repopt"]}
    way.start(net.parameters(), plan).load_state_dict(saved)


def test_what_a_constructor_leaves_is_loaded():
    """Adagrad has a sum before its first step."""
    net, plan, twin = twins()
    make = partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1)
    ours, theirs = attached(make)(net.parameters(), plan), make(twin.parameters())
    ours.load_state_dict(copy.deepcopy(make(net.parameters()).state_dict()))
    train(net, ours, 5)
    train(twin, theirs, 5)
    assert apart(net, twin) <= EXACT


def test_what_is_no_state_is_refused(way):
    net, plan, _ = twins()
    with pytest.raises(ValueError, match="not an optimizer's state"):
        way.start(net.parameters(), plan).load_state_dict({"net": net.state_dict()})


def test_the_state_of_another_route_is_refused():
    net, plan, _ = twins()
    states = []
    for route in ("grad", "branch"):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        handle = repopt.attach(optimizer, plan, route=route)
        train(net, optimizer, 1)
        states.append(optimizer.state_dict())
        handle.detach()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    repopt.attach(optimizer, plan, route="grad")
    optimizer.load_state_dict(states[0])
    with pytest.raises(ValueError, match="another route"):
        optimizer.load_state_dict(states[1])


@pytest.mark.parametrize("name", ["grad", "branch"])
def test_a_state_loaded_before_attach_is_checked_at_attach(name):
    net, plan, optimizer = trained(WAYS[name])
    state = optimizer.state_dict()
    wrong, right = WAYS[name].theirs(net.parameters()), WAYS[name].theirs(net.parameters())
    for fresh in (wrong, right):
        fresh.load_state_dict(copy.deepcopy(state))
    with pytest.raises(ValueError, match="made with other scales"):
        repopt.attach(wrong, other_scales(net))
    copied = copy.deepcopy(net)
    late = WAYS[name].theirs(copied.parameters())
    late.load_state_dict(copy.deepcopy(state))
    repopt.attach(late, plan.on(copied))
    train(net, optimizer, 5, first=3)
    train(copied, late, 5, first=3)
    assert torch.equal(copied[3].weight, net[3].weight)


def in_order(optimizer):
    """The state as text, in the order of the parameters."""
    state = optimizer.state_dict()
    return str({**state, "state": dict(sorted(state["state"].items()))})


def test_an_attach_that_fails_leaves_a_loaded_optimizer_as_it_was():
    net, plan, optimizer = trained(WAYS["branch"])
    copied = copy.deepcopy(net)
    late = WAYS["branch"].theirs(copied.parameters())
    late.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = in_order(late)
    kernels = plan.on(copied).init_()
    copied.load_state_dict(net.state_dict())
    for wrong, match in (
        ({**kernels, "3": {}}, "the kernels lack branch"),
        ({**kernels, "nowhere": {}}, "there are kernels for 'nowhere', which the plan does not hold"),
    ):
        with pytest.raises(ValueError, match=match):
            repopt.attach(late, plan.on(copied), kernels=wrong)
        assert in_order(late) == before
    repopt.attach(late, plan.on(copied))
    train(net, optimizer, 5, first=3)
    train(copied, late, 5, first=3)
    assert torch.equal(copied[3].weight, net[3].weight)


@pytest.mark.parametrize("name", ["grad", "branch"])
def test_attaching_in_the_middle_of_plain_training_is_refused(name):
    net, plan, _ = twins()
    optimizer = WAYS[name].theirs(net.parameters())
    train(net, optimizer, 2)
    with pytest.raises(ValueError, match="carries no fingerprint of scales"):
        repopt.attach(optimizer, plan)


def test_the_multiplier_is_never_saved():
    _, _, optimizer = trained(WAYS["grad"])
    plain = WAYS["grad"].theirs(small_net().parameters())
    saved, stock = optimizer.state_dict(), plain.state_dict()
    assert set(saved) == set(stock)
    assert set(saved["param_groups"][0]) - set(stock["param_groups"][0]) == {"repopt"}
    assert saved["param_groups"][0]["repopt"].startswith("grad-")


def test_the_model_may_be_loaded_before_or_after_the_optimizer(way):
    net, plan, optimizer = trained(way)
    weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, 5, first=3)
    for model_first in (True, False):
        other = small_net()
        fresh = way.start(other.parameters(), plan.on(other))
        if model_first:
            other.load_state_dict(weights)
        fresh.load_state_dict(copy.deepcopy(state))
        if not model_first:
            other.load_state_dict(weights)
        train(other, fresh, 5, first=3)
        assert torch.equal(other[3].weight, net[3].weight)


def test_a_group_added_later_carries_the_fingerprint(way):
    _, _, optimizer = trained(way)
    extra = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra]})
    marks = {group["repopt"] for group in optimizer.state_dict()["param_groups"]}
    assert len(marks) == 1


def test_scales_given_in_another_order_or_as_numbers_have_the_same_fingerprint():
    net = small_net()
    branches = {"0|3": [Conv(3), Conv(1), Identity()]}
    one = repopt.plan(net, branches, scales="ones")
    numbers = {name: {"conv1x1": 1.0, "conv3x3": 1.0} for name in ("3", "0")}
    other = repopt.plan(net, branches, numbers)
    optimizer = attached(WAYS["grad"].theirs)(net.parameters(), one)
    train(net, optimizer, 1)
    attached(WAYS["grad"].theirs)(net.parameters(), other).load_state_dict(optimizer.state_dict())
    assert planned(net).operators == one.operators


def thawed(way):
    """An operator whose param group was added after the start."""
    torch.manual_seed(0)
    net = small_net()
    plan = planned(net)
    plan.init_()
    net[3].weight.requires_grad_(False)
    optimizer = way.start([param for param in net.parameters() if param.requires_grad], plan)
    net[3].weight.requires_grad_(True)
    optimizer.add_param_group({"params": [net[3].weight]})
    return net, optimizer


@pytest.mark.parametrize("steps", [0, 5])
def test_an_operator_whose_group_was_added_later_is_resumed_too(way, steps):
    net, optimizer = thawed(way)
    train(net, optimizer, steps)
    weights, state = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, 5, first=steps)
    other, fresh = thawed(way)
    other.load_state_dict(weights)
    fresh.load_state_dict(state)
    train(other, fresh, 5, first=steps)
    assert torch.equal(other[3].weight, net[3].weight)


def test_the_state_of_another_closed_form_is_refused():
    net, plan, optimizer = trained(WAYS["closed"])
    for other in (repopt.optim.Lion, repopt.optim.Adam):
        with pytest.raises(ValueError, match="made with other scales, branches or another route"):
            other(net.parameters(), plan).load_state_dict(optimizer.state_dict())


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")  # one process is what is meant
@pytest.mark.parametrize("name", ["grad", "closed"])
def test_a_distributed_checkpoint_of_other_scales_is_refused(name, tmp_path):
    way = WAYS[name]
    net, _, optimizer = trained(way)
    weights, state = get_state_dict(net, optimizer)
    dcp.save({"weights": weights, "state": state}, checkpoint_id=tmp_path)
    fresh = way.start(net.parameters(), other_scales(net))
    weights, state = get_state_dict(net, fresh)
    saved = {"weights": weights, "state": state}
    dcp.load(saved, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match="made with other scales"):
        set_state_dict(net, fresh, model_state_dict=saved["weights"], optim_state_dict=saved["state"])


def without_branches(state):
    groups = [
        {key: value for key, value in group.items() if key != "repopt_branches"} for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


@pytest.mark.parametrize("steps", [0, 2])
def test_a_state_that_lost_its_branches_is_refused(steps):
    net, plan, optimizer = trained(WAYS["branch"], steps)
    lost = copy.deepcopy(without_branches(optimizer.state_dict()))
    before = in_order(optimizer)
    with pytest.raises(ValueError, match="lost its branches"):
        optimizer.load_state_dict(lost)
    assert in_order(optimizer) == before
    late = WAYS["branch"].theirs(net.parameters())
    late.load_state_dict(lost)
    with pytest.raises(ValueError, match="lost its branches"):
        repopt.attach(late, plan)


@pytest.mark.parametrize("name", WAYS)
def test_a_flattened_state_goes_on_or_is_refused(name):
    """torch rebuilds it with the options that the optimizer has now, and the branches are none of them."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    net, plan, optimizer = trained(WAYS[name])
    saved = copy.deepcopy(get_optimizer_state_dict(net, optimizer, options=options))
    other = copy.deepcopy(net)
    fresh = WAYS[name].start(other.parameters(), plan.on(other))
    if name == "branch":
        with pytest.raises(ValueError, match="lost its branches"):
            set_optimizer_state_dict(other, fresh, saved, options=options)
        return
    set_optimizer_state_dict(other, fresh, saved, options=options)
    train(net, optimizer, 2)
    train(other, fresh, 2)
    assert torch.equal(other[3].weight, net[3].weight)
