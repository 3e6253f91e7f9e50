import copy

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear


def net_and_plan():
    """A grouped convolution and a Linear with an identity, one that changes the shape, and one outside the plan."""
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 5, padding=2, groups=2), nn.Linear(6, 6), nn.Linear(6, 2)
    )
    return net, repopt.plan(net, {"0|1": [Conv(3), Conv(1), Identity()], "2": [Linear(), Identity()]})


def test_a_kernel_is_drawn_by_its_convention_and_an_identity_adds_one():
    """Without the draw the operator passes its input on; without the identity it is what torch draws."""
    net, plan = net_and_plan()
    before = copy.deepcopy(net)
    repopt.dirac_init_(net, plan, generator=torch.Generator().manual_seed(3))
    draw = torch.Generator().manual_seed(3)
    for drawn, x in zip(net[:3], (torch.randn(2, 4, 7, 7), torch.randn(2, 8, 7, 7), torch.randn(2, 6)), strict=True):
        noise = copy.deepcopy(drawn)
        nn.init.kaiming_uniform_(noise.weight, a=5**0.5, generator=draw)
        identity = drawn(x) - noise(x)
        torch.testing.assert_close(identity, x if drawn is not net[0] else torch.zeros_like(identity))
    for name, value in before.state_dict().items():
        if name not in ("0.weight", "1.weight", "2.weight"):
            assert torch.equal(net.state_dict()[name], value), name


def test_the_paper_s_convention_is_msra():
    net = nn.Conv2d(64, 64, 3, padding=1)
    plan = repopt.plan(net, {"^$": [Conv(3), Identity()]})
    other = copy.deepcopy(net)
    repopt.dirac_init_(other, plan, kernel="paper")  # a copy of the plan's model
    off = other.weight.detach().clone()
    off[range(64), range(64), 1, 1] -= 1
    torch.testing.assert_close(off.std().item(), (2 / 576) ** 0.5, rtol=0.05, atol=0)
    with pytest.raises(ValueError, match="kernel is 'authors' or 'paper', not 'he'"):
        repopt.dirac_init_(net, plan, kernel="he")
    with pytest.raises(TypeError, match=r"generator is a torch\.Generator or None, not a int"):
        repopt.dirac_init_(net, plan, generator=0)
    with pytest.raises(TypeError, match=r"plan is what repopt\.plan"):
        repopt.dirac_init_(net, "repvgg")
