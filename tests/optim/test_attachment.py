import copy
import pickle

import pytest
import torch
from torch import nn

import repopt
from repopt import Identity, Linear


def net_and_plan():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    return net, repopt.plan(net, {"0|2": [Linear(), Identity()]}, scales="ones")


def test_sgd_takes_the_grad_route_and_is_exact():
    net, plan = net_and_plan()
    for route in ("auto", "grad"):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        handle = repopt.attach(optimizer, plan, route=route)
        assert (handle.route, handle.exact) == ("grad", True)
        assert repr(handle) == "Handle(route='grad', exact=True)"
        handle.detach()


def test_a_detached_optimizer_is_plain_again():
    net, plan = net_and_plan()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan).detach()
    before = net[0].weight.detach().clone()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(net[0].weight.detach(), before - 0.1 * net[0].weight.grad)
    copy.deepcopy(optimizer)
    repopt.attach(optimizer, plan)


def test_the_handle_counts_the_bytes_it_keeps():
    net, plan = net_and_plan()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    handle = repopt.attach(optimizer, plan)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert handle.nbytes == sum(plan.multiplier(name).nbytes for name in plan.operators) == 2 * (4 + 1) * 4


def test_a_weight_that_the_optimizer_does_not_hold_is_named():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match=r"does not hold the weight of '2'"):
        repopt.attach(torch.optim.SGD(net[0].parameters(), lr=0.1), plan)
    with pytest.raises(ValueError, match=r"the weight of '0' and of 1 more planned operators"):
        repopt.attach(torch.optim.SGD([net[0].bias], lr=0.1), plan)
    with pytest.raises(ValueError, match=r"holds no parameter of the plan's model"):
        repopt.attach(torch.optim.SGD(copy.deepcopy(net).parameters(), lr=0.1), plan)


def test_attaching_twice_is_refused():
    net, plan = net_and_plan()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan)
    with pytest.raises(ValueError, match="attached to a plan already"):
        repopt.attach(optimizer, plan)


@pytest.mark.parametrize("copying", [copy.deepcopy, copy.copy, pickle.dumps])
def test_an_attached_optimizer_is_not_copied_or_pickled(copying, tmp_path):
    net, plan = net_and_plan()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copying(optimizer)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        torch.save(optimizer, tmp_path / "optimizer.pt")


@pytest.mark.parametrize("copying", [copy.deepcopy, copy.copy, pickle.dumps])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.ASGD, torch.optim.AdamW])
def test_a_handle_is_not_copied_or_pickled_while_it_is_attached(kind, copying):
    net, plan = net_and_plan()
    handle = repopt.attach(kind(net.parameters(), lr=0.1), plan)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copying(handle)
    handle.detach()
    copy.copy(handle)


def test_a_plan_without_scales_cannot_be_attached():
    net = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="this plan has no scales"):
        repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1), repopt.plan(net, {"^$": [Linear()]}))


def test_forcing_the_gradient_on_another_rule_is_refused_and_says_why():
    net, plan = net_and_plan()
    optimizer = torch.optim.AdamW(net.parameters())
    with pytest.raises(ValueError, match="exact only for rules of degree 1"):
        repopt.attach(optimizer, plan, route="grad")
    assert not repopt.attach(optimizer, plan, route="grad", allow_inexact=True).exact


def test_a_differentiable_optimizer_is_refused():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match="differentiable=True"):
        repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1, differentiable=True), plan)


def test_an_unknown_route_is_refused():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match="route is 'auto', 'grad' or 'branch', not 'fast'"):
        repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1), plan, route="fast")


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_second_detach_leaves_the_next_handle_alone(make):
    net, plan = net_and_plan()
    optimizer = make(net.parameters(), lr=0.1)
    first = repopt.attach(optimizer, plan)
    first.detach()
    second = repopt.attach(optimizer, plan)
    first.detach()
    with pytest.raises(ValueError, match="attached to a plan already"):
        repopt.attach(optimizer, plan)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(optimizer)
    assert "repopt" in optimizer.state_dict()["param_groups"][0]
    second.detach()
    second.detach()
    copy.deepcopy(optimizer)
