"""What an optimizer and a plan must agree on: weights that are held, and weights that are a block's."""

import copy

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim.contract import unreached
from side_by_side import WAYS, apart, small_net, train, twins


@pytest.mark.parametrize("way", WAYS)
def test_a_module_put_in_the_place_of_another_is_the_operator_from_then_on(way):
    net, plan, twin = twins()
    ours, theirs = WAYS[way].start(net.parameters(), plan), WAYS[way].theirs(twin.parameters())
    train(net, ours, 3)
    train(twin, theirs, 3)
    net[3] = nn.Conv2d(6, 6, 3, padding=1, groups=2).double()
    kernels = plan.init_()
    ours.add_param_group({"params": list(net[3].parameters())})
    twin[3] = repopt.csla_model(net, plan, kernels)[3]
    theirs.add_param_group({"params": list(twin[3].parameters())})
    twin[0].load_state_dict(repopt.csla_model(net, plan, kernels)[0].state_dict())
    train(net, ours, 10)
    train(twin, theirs, 10)
    assert apart(net, twin) <= 1e-11


def test_an_operator_is_replaced_in_any_parent():
    """In a network with a child called as wrappers call theirs, and in a wrapper itself."""
    named = nn.Sequential()
    named.module, named.conv = nn.Identity(), nn.Conv2d(3, 3, 3, padding=1)
    for net, name in ((named, "conv"), (nn.DataParallel(nn.Conv2d(3, 3, 3, padding=1)), "module")):
        plan = repopt.plan(net, "repvgg", scales="ones")
        plan.init_()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        repopt.attach(optimizer, plan)
        setattr(net, name, nn.Conv2d(3, 3, 3, padding=1))
        weight = getattr(net, name).weight
        before = weight.detach().clone()
        optimizer.add_param_group({"params": [weight]})
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        torch.testing.assert_close(before - weight.detach(), 0.1 * plan.multiplier(plan.operators[0]).dense())


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("way", WAYS)
def test_what_stands_above_an_operator_is_replaced(way):
    """A copy has other weights, which the optimizer must hold; in a wrapper, the operator is the one it was."""
    net = nn.Sequential(small_net(), nn.Identity())
    plan = repopt.plan(net, {r"0\.[03]": [Conv(3), Conv(1), Identity()]}, scales="ones")
    plan.init_()
    ours = WAYS[way].start(net.parameters(), plan)
    net[0] = Wrapped(net[0])
    before = net[0].inner[3].weight.detach().clone()
    train(net, ours, 1)
    assert not torch.equal(net[0].inner[3].weight, before)
    net[0] = copy.deepcopy(net[0].inner)
    with pytest.raises(RuntimeError, match=r"'0\.0' is trained but is not, or no longer, a parameter"):
        train(net, ours, 1)


def test_an_operator_that_is_gone_is_named():
    net, plan, _ = twins()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan)
    net[3] = nn.Identity()
    with pytest.raises(RuntimeError, match="no linear operator at '3' any more"):
        optimizer.step()


def one_by_one(weight=None):
    net = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    return net, repopt.plan(net, {"^$": [Conv(1), Identity()]}, scales="ones")


def test_a_weight_out_of_reach_is_no_blocks():
    net, plan = one_by_one()
    assert unreached(plan) == ""
    for start in (
        lambda: repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1), plan),
        lambda: repopt.attach(torch.optim.AdamW(net.parameters()), plan),
        lambda: repopt.optim.AdamW(net.parameters(), plan),
    ):
        with pytest.raises(ValueError, match="the weight of '' is not zero at entries that no branch"):
            start()
    plan.init_()
    assert unreached(plan) is None


def test_it_may_be_let_through_as_inexact():
    net, plan = one_by_one()
    assert not repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1), plan, allow_inexact=True).exact


def test_a_scale_of_zero_puts_a_channel_out_of_reach():
    net = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    scales = {"": {"conv3x3": torch.tensor([1.0, 0.0, 1.0, 1.0]), "conv1x1": 1.0}}
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1)]}, scales)
    assert unreached(plan) == ""
    with torch.no_grad():
        net.weight[1] *= torch.zeros(3, 3).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(1.0))
    assert unreached(plan) is None


def test_a_scale_whose_square_is_no_number_any_more_still_reaches():
    net = nn.Conv2d(2, 2, 1).double()
    plan = repopt.plan(net, {"^$": [Conv(1)]}, {"": {"conv1x1": 1e-200}})
    assert unreached(plan) is None


def test_weights_without_values_are_named():
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1))
    plan = repopt.plan(net, {"0": [Conv((1, 3)), Conv((3, 1))]}, scales="ones")
    with pytest.raises(ValueError, match="the weight of '0' is on the meta device and has no values"):
        repopt.attach(torch.optim.SGD(net.parameters(), lr=0.1), plan)
