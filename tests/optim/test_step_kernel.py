"""One launch for all parameters takes the step that torch's own operations take, one parameter after the other.

On a GPU; on a CPU with TRITON_INTERPRET=1, which the last test sets for a small part of this file.
"""

import copy
import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.algebra.operators import LinearOperator
from repopt.optim import closed_form
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
on_device = [
    pytest.mark.cuda,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
RULES = {
    "sgd": (repopt.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd without momentum": (repopt.optim.SGD, {"weight_decay": 0.01, "maximize": True}),
    "sgd with dampening": (repopt.optim.SGD, {"momentum": 0.9, "dampening": 0.4}),
    "adamw": (repopt.optim.AdamW, {"weight_decay": 0.1}),
    "adam": (repopt.optim.Adam, {"betas": (0.0, 0.9), "maximize": True, "eps": 1e-3}),
    "adamw with amsgrad": (repopt.optim.AdamW, {"amsgrad": True}),
    "lion": (repopt.optim.Lion, {"weight_decay": 0.1}),
}


def planned(net, branches):
    """A plan of the net, or of its first module."""
    bare = repopt.plan(net, {"^$" if isinstance(net, LinearOperator) else "^0$": branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_()
    return plan


def trained(net, plan, at_once, monkeypatch, rule, *, steps=5, grads=None, **more):
    """A copy of a net after some steps on noise, by a launch or without."""
    kind, options = RULES[rule]
    model = copy.deepcopy(net)
    with monkeypatch.context() as patch:
        patch.setattr(closed_form, "takes_kernels", lambda tensor: at_once)
        optimizer = kind(model.parameters(), plan.on(model), **{"lr": 0.01, **options, **more})
        draw = torch.Generator().manual_seed(0)
        for _ in range(steps):
            for param in model.parameters():
                noise = torch.randn(param.shape, generator=draw).to(param)
                param.grad = (grads or as_dense)(param, noise)
            before = [param.grad.clone() for param in model.parameters()]
            optimizer.step()
            for param, grad in zip(model.parameters(), before, strict=True):
                assert torch.equal(param.grad, grad)
    arranged = optimizer._form._arranged[0]
    assert bool(arranged.launches) == at_once
    assert bool(arranged.one_by_one) != at_once
    return model


def as_dense(param, noise):
    return torch.empty_like(param).copy_(noise)


def check_alike(net, plan, monkeypatch, rule, tolerance=1e-12, **more):
    once, each = (trained(net, plan, at_once, monkeypatch, rule, **more) for at_once in (True, False))
    for ours, theirs in zip(once.parameters(), each.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        assert ours.stride() == theirs.stride()


class TestKernels:
    pytestmark = on_device

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("branch_set", BRANCH_SETS)
    def test_every_rule_on_every_branch_set(self, branch_set, rule, monkeypatch):
        case = BRANCH_SETS[branch_set]
        net = case.operator().to(DEVICE, torch.float64)
        check_alike(net, planned(net, case.branches), monkeypatch, rule)

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("branch_set", ["RepVGG", "grouped"])
    def test_channels_last(self, branch_set, rule, monkeypatch):
        case = BRANCH_SETS[branch_set]
        net = case.operator().to(DEVICE, torch.float64).to(memory_format=torch.channels_last)
        check_alike(net, planned(net, case.branches), monkeypatch, rule)

    @pytest.mark.parametrize("channels", [1, 3, 130])
    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_tensors_larger_and_smaller_than_a_block(self, channels, layout, monkeypatch):
        net = nn.Conv2d(channels, channels, 3, padding=1).to(DEVICE, torch.float64).to(memory_format=layout)
        check_alike(net, planned(net, [Conv(3), Conv(1), Identity()]), monkeypatch, "sgd", steps=2)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("rule", ["sgd", "adamw", "lion"])
    def test_other_precisions(self, rule, dtype, monkeypatch):
        net = nn.Conv2d(8, 8, 3, padding=1).to(DEVICE, dtype)
        plan = planned(net, [Conv(3), Conv(1), Identity()])
        tolerance = 1e-5 if dtype == torch.float32 else 0.1  # a state kept in half precision is rounded at each step
        eps = {"eps": 1e-3} if rule == "adamw" else {}  # the usual one is 0 in half precision
        check_alike(net, plan, monkeypatch, rule, tolerance, steps=3, **eps)

    def test_gradients_at_odd_addresses(self, monkeypatch):
        """As views of DDP's buckets have them."""

        def in_a_bucket(param, noise):
            bucket = torch.empty(param.numel() + 1, dtype=param.dtype, device=param.device)
            return bucket[1:].view_as(param).copy_(noise)

        net = nn.Conv2d(8, 8, 3, padding=1).to(DEVICE, torch.float64)
        plan = planned(net, [Conv(3), Conv(1), Identity()])
        check_alike(net, plan, monkeypatch, "sgd", grads=in_a_bucket)

    def test_several_groups_and_a_tensor_for_lr(self, monkeypatch):
        def train(at_once):
            model = copy.deepcopy(net)
            monkeypatch.setattr(closed_form, "takes_kernels", lambda tensor: at_once)
            lr = torch.tensor(0.1, device=DEVICE, dtype=torch.float64)
            groups = [{"params": [model[0].weight], "lr": lr}, {"params": [model[0].bias, *model[1].parameters()]}]
            optimizer = repopt.optim.SGD(groups, plan.on(model), lr=0.01, momentum=0.9, weight_decay=0.1)
            for param in model.parameters():
                param.grad = torch.ones_like(param)
            for step in range(3):
                lr.fill_(0.1 / (1 + step))
                optimizer.param_groups[1]["lr"] = 0.01 * step
                optimizer.step()
            return model

        net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Linear(3, 2)).to(DEVICE, torch.float64)
        plan = planned(net, [Conv(3), Conv(1), Identity()])
        for ours, theirs in zip(train(True).parameters(), train(False).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

    def test_a_layout_that_no_kernel_takes_goes_the_other_way(self, monkeypatch):
        net = nn.Conv2d(4, 4, 3, padding=1, bias=False).to(DEVICE, torch.float64)
        net.weight = nn.Parameter(torch.randn(8, 4, 3, 3, device=DEVICE, dtype=torch.float64)[::2])
        plan = planned(net, [Conv(3), Conv(1), Identity()])
        optimizer = repopt.optim.SGD(net.parameters(), plan, lr=0.01)
        before = net.weight.detach().clone()
        net.weight.grad = torch.ones_like(net.weight)
        optimizer.step()
        assert not optimizer._form._arranged[0].launches
        expected = before - 0.01 * plan.multiplier("").dense().to(before)
        torch.testing.assert_close(net.weight.detach(), expected)

    def test_an_overflow_at_the_first_step_leaves_the_dampening_for_the_next(self):
        net = nn.Conv2d(4, 4, 3, padding=1).to(DEVICE, torch.float64)
        plan = planned(net, [Conv(3), Conv(1), Identity()])
        plain = copy.deepcopy(net)
        ours, theirs = (
            repopt.optim.SGD(model.parameters(), plan.on(model), lr=0.1, momentum=0.9, dampening=0.5)
            for model in (net, plain)
        )
        for model in (net, plain):
            for param in model.parameters():
                param.grad = torch.ones_like(param)
        for overflow in (1.0, 0.0, 0.0):
            ours.grad_scale = torch.ones((), device=DEVICE)
            ours.found_inf = torch.full((), overflow, device=DEVICE)
            ours.step()
        theirs.step()
        theirs.step()
        torch.testing.assert_close(net.weight, plain.weight, rtol=1e-12, atol=1e-12)

    def test_a_scaled_gradient_is_left_unscaled(self):
        net = nn.Conv2d(4, 4, 3, padding=1).to(DEVICE)
        optimizer = repopt.optim.SGD(net.parameters(), planned(net, [Conv(3), Identity()]), lr=0.1)
        for param in net.parameters():
            param.grad = torch.full_like(param, 8.0)
        optimizer.grad_scale = torch.full((), 4.0, device=DEVICE)
        optimizer.found_inf = torch.zeros((), device=DEVICE)
        optimizer.step()
        assert all((param.grad == 2).all() for param in net.parameters())

    def test_a_step_is_seen_by_autograd(self):
        """Raw writes count as writes: a backward pass through a weight that was stepped in between is refused."""
        net = nn.Conv2d(4, 4, 3, padding=1).to(DEVICE)
        optimizer = repopt.optim.SGD(net.parameters(), planned(net, [Conv(3), Identity()]), lr=0.1)
        x = torch.ones(1, 4, 5, 5, device=DEVICE, requires_grad=True)
        loss = net(x).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreted run")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_in_the_interpreter():
    cases = "RepVGG or finer or grouped or overflow or unscaled or odd or lr"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-cov", __file__, "-k", cases]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
