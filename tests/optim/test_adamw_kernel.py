"""The closed-form AdamW in one pass on a GPU is the one in many."""

import copy

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim import adam
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def trained(net, plan, at_once, monkeypatch, **options):
    model = copy.deepcopy(net)
    monkeypatch.setattr(adam, "takes_kernels", lambda tensor: at_once)
    optimizer = repopt.optim.AdamW(model.parameters(), plan.on(model), lr=0.01, weight_decay=0.1, **options)
    draw = torch.Generator("cuda").manual_seed(0)
    for _ in range(20):
        for param in model.parameters():
            noise = torch.randn(param.shape, generator=draw, device="cuda")
            param.grad = torch.empty_like(param).copy_(noise)
        optimizer.step()
    return model


@pytest.mark.parametrize("options", [{}, {"eps": 1e-3, "capturable": True}, {"betas": (0.0, 0.9), "maximize": True}])
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_every_branch_set(branch_set, options, monkeypatch):
    case = BRANCH_SETS[branch_set]
    net = case.operator().cuda()
    bare = repopt.plan(net, {"^$": case.branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_()
    once, many = (trained(net, plan, at_once, monkeypatch, **options) for at_once in (True, False))
    for ours, theirs in zip(once.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 130, 512])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_longer_and_shorter_than_a_block(channels, layout, monkeypatch):
    net = nn.Conv2d(channels, channels, 3, padding=1, bias=False).cuda().to(memory_format=layout)
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    once, many = (trained(net, plan, at_once, monkeypatch) for at_once in (True, False))
    torch.testing.assert_close(once.weight, many.weight, rtol=1e-4, atol=1e-5)
    assert once.weight.is_contiguous(memory_format=layout)


def test_half_precision(monkeypatch):
    net = nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda().bfloat16()
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    once, many = (trained(net, plan, at_once, monkeypatch) for at_once in (True, False))
    assert once.weight.dtype == torch.bfloat16
    torch.testing.assert_close(once.weight, many.weight, rtol=0.1, atol=0.05)
