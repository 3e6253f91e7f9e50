"""The product in one pass on a GPU is the dense one."""

import pytest
import torch

import repopt
from repopt.algebra.multiplier import grad_mult
from repopt.optim.grad_route import multiply_
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_every_branch_set_in_every_precision(branch_set, dtype):
    case = BRANCH_SETS[branch_set]
    bare = repopt.plan(case.operator().to("cuda", dtype), {"^$": case.branches})
    multiplier = bare.with_scales(mixed_sign_scales(bare)).multiplier("")
    shape = bare.blocks[""].operator.kernel_shape
    layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])]
    for layout in layouts:
        grad = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=layout)
        expected = (grad * multiplier.dense()).to(dtype)
        multiply_([grad], [multiplier])
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("channels", [1, 3, 64, 130, 512])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_longer_and_shorter_than_a_block(channels, layout):
    case = BRANCH_SETS["RepVGG"]
    net = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False, device="cuda")
    bare = repopt.plan(net, {"^$": case.branches})
    multiplier = bare.with_scales(mixed_sign_scales(bare)).multiplier("")
    grad = torch.randn(net.weight.shape, device="cuda").contiguous(memory_format=layout)
    expected = grad * multiplier.dense()
    multiply_([grad], [multiplier])
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_the_rows_of_a_shard(cut):
    case = BRANCH_SETS["grouped"]
    bare = repopt.plan(case.operator(), {"^$": case.branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    whole = grad_mult(plan.blocks[""], plan.constants(""), device="cuda").dense()
    part = grad_mult(plan.blocks[""], plan.constants(""), device="cuda", rows=range(cut, 6))
    grad = torch.randn(6 - cut, 3, 3, 3, device="cuda")
    expected = grad * whole[cut:]
    multiply_([grad], [part])
    torch.testing.assert_close(grad, expected)


def test_a_gradient_that_is_a_slice_takes_the_other_way():
    case = BRANCH_SETS["RepVGG"]
    bare = repopt.plan(case.operator().cuda(), {"^$": case.branches})
    multiplier = bare.with_scales(mixed_sign_scales(bare)).multiplier("")
    whole = torch.ones(12, 6, 3, 3, device="cuda")
    multiply_([whole[::2]], [multiplier])
    torch.testing.assert_close(whole[::2], multiplier.dense())
