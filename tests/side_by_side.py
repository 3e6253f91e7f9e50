"""A plain net and its real blocks, trained side by side in float64: what the tests of every route share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.surgery.conversion import csla_model
from repopt.verification.cases import mixed_sign_scales

EXACT = 1e-12
STEPS = 25  # of a row of the matrix: RAdam changes its rule within them; `repopt verify` takes more


@dataclass(frozen=True)
class Way:
    """One way to train the imagined blocks: the optimizer of the plain net, and that of the real blocks."""

    ours: Callable
    theirs: Callable

    def start(self, params, plan, **options):
        """The plain net's optimizer, at work on the plan."""
        return self.ours(params, plan, **options)


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, **options})


def adamw(params, **options):
    return torch.optim.AdamW(params, **{"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1, **options})


def attached(make):
    def ours(params, plan, **options):
        optimizer = make(params, **options)
        repopt.attach(optimizer, plan)
        return optimizer

    return ours


def closed_adamw(params, plan, **options):
    return repopt.optim.AdamW(params, plan, **{"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1, **options})


WAYS = {
    "grad": Way(attached(sgd), sgd),
    "branch": Way(attached(adamw), adamw),
    "closed": Way(closed_adamw, adamw),
}


def small_net(memory_format=torch.contiguous_format):
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )
    return net.double().to(memory_format=memory_format)


def planned(net):
    bare = repopt.plan(net, {"0|3": [Conv(3), Conv(1), Identity()]})
    return bare.with_scales(mixed_sign_scales(bare))


def twins(net=None):
    """A plain net with its plan, and the real blocks with the same kernels."""
    net = small_net() if net is None else net
    plan = planned(net)
    return net, plan, csla_model(net, plan, plan.init_())


def batch(step=0):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 8, 8, generator=draw, dtype=torch.float64)


def loss_of(model, step=0):
    return (model(batch(step)) - 1).square().mean()


def backward(model, step=0):
    loss_of(model, step).backward()


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def apart(net, twin):
    """The relative difference of their outputs."""
    x = batch(99)
    net.eval(), twin.eval()
    difference = ((net(x) - twin(x)).abs().max() / twin(x).abs().max()).item()
    net.train(), twin.train()
    return difference
