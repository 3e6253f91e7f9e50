"""A CPU's step in one pass is the step in torch's own operations."""

import copy
import os
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim import closed_form, one_pass
from repopt.optim.one_pass import OnePass
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales

RULES = {
    "sgd": (repopt.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd with dampening": (repopt.optim.SGD, {"momentum": 0.9, "dampening": 0.4, "maximize": True}),
    "sgd without momentum": (repopt.optim.SGD, {}),
    "adamw": (repopt.optim.AdamW, {"weight_decay": 0.1}),
    "adamw with amsgrad": (repopt.optim.AdamW, {"amsgrad": True}),
    "lion": (repopt.optim.Lion, {"weight_decay": 0.1}),
}


def planned(net, branches):
    bare = repopt.plan(net, {"^$": branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_()
    return plan


def trained(net, plan, worth_it, monkeypatch, rule):
    kind, options = RULES[rule]
    model = copy.deepcopy(net)
    with monkeypatch.context() as patch:
        patch.setattr(closed_form, "is_worth_it", lambda elements: worth_it)
        patch.setattr(closed_form, "_SMALL", 0)
        patch.setattr(one_pass, "_SHORTEST", 0)
        patch.setattr(one_pass, "_MOST_VARIANTS", 1000)
        optimizer = kind(model.parameters(), plan.on(model), lr=0.01, **options)
        draw = torch.Generator().manual_seed(0)
        for _ in range(4):
            for param in model.parameters():
                noise = torch.randn(param.shape, generator=draw, dtype=param.dtype)
                param.grad = torch.empty_like(param).copy_(noise)
            optimizer.step()
    arranged = optimizer._form._arranged[0]
    assert any(isinstance(found, OnePass) for _, found in arranged.one_by_one) == worth_it
    return model


def check_alike(net, plan, monkeypatch, rule):
    ours, theirs = (trained(net, plan, worth_it, monkeypatch, rule) for worth_it in (True, False))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_every_rule_on_every_branch_set(branch_set, rule, monkeypatch):
    """Without the compiler: what it compiles, and the entries that are stepped apart."""
    monkeypatch.setattr(one_pass, "_compiled", lambda update_: update_)
    case = BRANCH_SETS[branch_set]
    net = case.operator().double()
    for layout in (torch.contiguous_format, *([torch.channels_last] if net.weight.ndim == 4 else [])):
        laid_out = copy.deepcopy(net).to(memory_format=layout)
        check_alike(laid_out, planned(laid_out, case.branches), monkeypatch, rule)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
@pytest.mark.no_cover  # the time goes into torch's compiler
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_compiled(layout, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # not what was compiled for another processor
    net = nn.Conv2d(32, 32, 3, padding=1).double().to(memory_format=layout)
    check_alike(net, planned(net, [Conv(3), Conv(1), Identity()]), monkeypatch, "sgd")


STEP = """
import torch
import repopt

net = torch.nn.Conv2d(512, 1024, 3, padding=1, bias=False)
plan = repopt.plan(net, {"^$": [repopt.Conv(3), repopt.Conv(1)]}, scales="depth")
optimizer = repopt.optim.SGD(net.parameters(), plan, lr=0.5)
before, net.weight.grad = net.weight.detach().clone(), torch.ones_like(net.weight)
optimizer.step()
torch.testing.assert_close(net.weight.detach(), before - 0.5 * plan.multiplier("").dense())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on this machine")
def test_what_was_compiled_for_narrower_vectors_is_not_taken_from_the_cache(tmp_path):
    """torch would take it, and compile it for the wider ones, by which it writes past the ends of arrays."""
    for narrower in ({"ATEN_CPU_CAPABILITY": "avx2"}, {}):
        known = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
        env = {**known, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **narrower}
        done = subprocess.run([sys.executable, "-c", STEP], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_small_nets_are_not_compiled():
    net = nn.Conv2d(8, 8, 3, padding=1)
    optimizer = repopt.optim.SGD(net.parameters(), planned(net, [Conv(3), Identity()]), lr=0.1)
    net(torch.ones(1, 8, 4, 4)).sum().backward()
    optimizer.step()
    assert not any(isinstance(found, OnePass) for _, found in optimizer._form._arranged[0].one_by_one)


def test_more_shapes_than_torch_compiles_loops_for_are_stepped_otherwise(monkeypatch):
    monkeypatch.setattr(one_pass, "_VARIANTS", defaultdict(set))
    passes = [one_pass.one_pass(print, {}, torch.zeros(4, width), [], 1, 0) for width in range(32, 44)]
    assert sum(found is not None for found in passes) == 7
    assert one_pass.one_pass(print, {}, torch.zeros(4, 32), [], 1, 0) is not None


def test_a_rule_that_cannot_be_compiled_is_taken_as_it_is(monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    def failing(*arrays, **flags):
        raise TorchDynamoException("no at::vec")

    monkeypatch.setattr(one_pass, "_compiled", lambda update_: failing)
    monkeypatch.setattr(one_pass, "_REFUSED", set())
    net = nn.Conv2d(8, 8, 3, padding=1).double()
    with pytest.warns(UserWarning, match="torch cannot compile the optimizer's step for this CPU"):
        check_alike(net, planned(net, [Conv(3), Conv(1), Identity()]), monkeypatch, "sgd")


def test_a_compiler_that_does_not_work_is_none(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no Python.h")

    monkeypatch.setattr(torch, "compile", broken)
    assert not one_pass.has_compiler.__wrapped__()
