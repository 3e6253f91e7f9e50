import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim.reach import unreached


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
