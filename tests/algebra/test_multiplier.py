import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim.product import product
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales


def planned(branch_set):
    case = BRANCH_SETS[branch_set]
    bare = repopt.plan(case.operator().double(), {"^$": case.branches})
    return bare.with_scales(mixed_sign_scales(bare))


def test_the_dense_multiplier_is_equation_3():
    s, t = torch.randn(4), torch.randn(4)
    net = nn.Conv2d(4, 4, 3, padding=1)
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, {"": {"conv3x3": s, "conv1x1": t}})
    expected = s.square().view(-1, 1, 1, 1).expand(4, 4, 3, 3).clone()
    expected[:, :, 1, 1] += t.square().view(-1, 1) + torch.eye(4)
    torch.testing.assert_close(plan.multiplier("").dense(), expected)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_the_structured_product_is_the_dense_one(branch_set, degree):
    plan = planned(branch_set)
    multiplier = plan.multiplier("", degree)
    grad = torch.randn(plan.blocks[""].operator.kernel_shape, dtype=torch.float64)
    expected = grad * multiplier.dense()
    torch.testing.assert_close(product(grad, multiplier), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("channels", [1, 3, 7, 16, 17, 24, 48])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_channel_count_and_memory_format_gives_the_same_product(channels, memory_format):
    net = nn.Conv2d(channels, 6, 3, padding=1, bias=False)
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1)]}, {"": {"conv3x3": torch.randn(6), "conv1x1": 0.5}})
    grad = torch.randn(6, channels, 3, 3).to(memory_format=memory_format)
    expected = grad * plan.multiplier("").dense()
    found = product(grad, plan.multiplier(""))
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=memory_format)


def test_a_gradient_that_is_a_slice_of_something_larger_stays_as_it_is():
    plan = planned("RepVGG")
    whole = torch.ones(12, 6, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(product(whole[::2], plan.multiplier("")), plan.multiplier("").dense())
    assert (whole == 1).all()


def test_degree_0_takes_absolute_values_and_degree_1_squares():
    net = nn.Conv2d(2, 2, 1)
    plan = repopt.plan(net, {"^$": [Conv(1), Conv(1)]}, {"": {"conv1x1": -0.5, "conv1x1_2": 2.0}})
    assert plan.multiplier("", degree=0).dense().unique().tolist() == [2.5]
    assert plan.multiplier("", degree=1).dense().unique().tolist() == [4.25]


def test_the_multipliers_of_b1_take_less_than_half_a_megabyte():
    with torch.device("meta"):
        net = repopt.create_model("repopt_vgg_b1")
    plan = repopt.plan(net.to_empty(device="cpu"), scales="ones")
    multipliers = [plan.multiplier(name) for name in plan.operators]
    assert len(multipliers) == 28
    assert sum(each.nbytes for each in multipliers) <= 500_000
    dense = sum(4 * torch.Size(each.shape).numel() for name, each in zip(plan.operators, multipliers, strict=True))
    assert round(dense / 1e6) == 199


def test_a_half_precision_gradient_is_multiplied_by_a_single_precision_multiplier():
    net = nn.Conv2d(4, 4, 3, padding=1).bfloat16()
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, scales="ones")
    multiplier = plan.multiplier("")
    assert multiplier.taps.dtype == torch.float32
    grad = torch.ones(4, 4, 3, 3, dtype=torch.bfloat16)
    assert torch.equal(product(grad, multiplier).float(), multiplier.dense())
