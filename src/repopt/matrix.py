"""A representative matrix of what the equality claims: branch sets x update rules, with scales of both signs.

`repopt verify` runs it, and the tests are parametrized from it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from repopt.attachment.handle import Route
from repopt.branches import Branch, Conv, Identity, Linear
from repopt.operators import LinearOperator
from repopt.plans import Plan, plan
from repopt.scales import Scales
from repopt.verification import OptimizerFactory, Report, verify

EXACT_TO = 1e-10  # what `repopt verify` takes as equal; the tests ask for 1e-12


@dataclass(frozen=True, kw_only=True)
class BranchSet:
    """An operator and the branches that it imagines."""

    operator: Callable[[], LinearOperator]
    branches: tuple[Branch, ...]


@dataclass(frozen=True, kw_only=True)
class OptimizerCase:
    """An optimizer with its options."""

    optimizer: OptimizerFactory
    route: Route = "auto"
    allow_inexact: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the matrix, as `repopt verify` prints it."""

    rule: str
    branch_set: str
    report: Report

    @property
    def passed(self) -> bool:
        return not self.report.exact or self.report.worst <= EXACT_TO


_REPVGG: tuple[Branch, ...] = (Conv(3), Conv(1), Identity())

BRANCH_SETS: Mapping[str, BranchSet] = {
    "RepVGG": BranchSet(operator=lambda: nn.Conv2d(6, 6, 3, padding=1, bias=False), branches=_REPVGG),
    "RepVGG, stride 2": BranchSet(operator=lambda: nn.Conv2d(4, 6, 3, 2, padding=1, bias=False), branches=_REPVGG),
    "two of one shape": BranchSet(
        operator=lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), branches=(Conv(3), Conv(3))
    ),
    "ACNet": BranchSet(
        operator=lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), branches=(Conv(3), Conv((1, 3)), Conv((3, 1)))
    ),
    "dilated branch": BranchSet(
        operator=lambda: nn.Conv2d(4, 6, 7, padding=3, bias=False),
        branches=(Conv(7), Conv(5), Conv(3, dilation=2), Conv(3, dilation=3)),
    ),
    "dilated operator": BranchSet(
        operator=lambda: nn.Conv2d(6, 6, 5, padding=4, dilation=2, bias=False),
        branches=(Conv(5), Conv(3, dilation=2), Conv(1), Identity()),
    ),
    "depthwise": BranchSet(
        operator=lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), branches=(Conv(3), Identity())
    ),
    "grouped": BranchSet(operator=lambda: nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False), branches=_REPVGG),
    "finer groups": BranchSet(
        operator=lambda: nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
        branches=(Conv(3), Conv(3, groups=4), Conv(1, groups=8), Identity()),
    ),
    "finer groups alone": BranchSet(
        operator=lambda: nn.Conv2d(4, 8, 3, padding=1, bias=False), branches=(Conv(3, groups=2), Conv(1, groups=4))
    ),
    "linear": BranchSet(operator=lambda: nn.Linear(6, 6), branches=(Linear(), Identity())),
    "conv1d": BranchSet(operator=lambda: nn.Conv1d(6, 6, 3, padding=1), branches=_REPVGG),
    "conv3d": BranchSet(operator=lambda: nn.Conv3d(4, 4, 3, padding=1), branches=_REPVGG),
    "padding 0": BranchSet(operator=lambda: nn.Conv2d(6, 6, 3, bias=False), branches=_REPVGG),
    "padding same": BranchSet(operator=lambda: nn.Conv2d(6, 6, 3, padding="same", bias=False), branches=_REPVGG),
    "padding reflect": BranchSet(
        operator=lambda: nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect", bias=False), branches=_REPVGG
    ),
    "bias": BranchSet(operator=lambda: nn.Conv2d(6, 6, 3, padding=1), branches=_REPVGG),
}


def _sgd(**options: Any) -> OptimizerCase:
    return OptimizerCase(optimizer=partial(torch.optim.SGD, **{"lr": 0.05, "momentum": 0.9, **options}))


SGD_RULES: Mapping[str, OptimizerCase] = {
    "SGD": _sgd(momentum=0.0),
    "SGD, momentum": _sgd(),
    "SGD, nesterov, L2": _sgd(nesterov=True, weight_decay=0.01),
    "SGD, dampening": _sgd(dampening=0.5),
    "SGD, maximize": _sgd(maximize=True, lr=0.005, weight_decay=0.01),
    "SGD, foreach": _sgd(nesterov=True, weight_decay=0.01, foreach=True),
    "SGD, fused": _sgd(nesterov=True, weight_decay=0.01, fused=True),
}

# Shown for what they are: the gradient is multiplied, and the two models part.
INEXACT_RULES: Mapping[str, OptimizerCase] = {
    "AdamW, forced": OptimizerCase(optimizer=partial(torch.optim.AdamW, lr=0.01), route="grad", allow_inexact=True),
}


def mixed_sign_scales(bare: Plan, seed: int = 0) -> Scales:
    """One number an output channel, between 0.3 and 1.5 in size and of either sign."""
    draw = torch.Generator().manual_seed(seed)
    return Scales(
        {
            name: {branch: _mixed_signs(scale.numel(), draw) for branch, scale in branches.items()}
            for name, branches in Scales.ones(bare).items()
        }
    )


def run_matrix(steps: int = 50, seed: int = 0) -> Iterator[Row]:
    """Yields every branch set under one rule, then every other rule on RepVGG's branches."""
    main = "SGD, nesterov, L2"
    for name in BRANCH_SETS:
        yield run_row(main, SGD_RULES[main], name, steps, seed)
    for label, rule in {**SGD_RULES, **INEXACT_RULES}.items():
        if label != main:
            yield run_row(label, rule, "RepVGG", steps, seed)


def run_row(label: str, rule: OptimizerCase, branch_set: str, steps: int = 50, seed: int = 0) -> Row:
    """Verifies one rule on one branch set."""
    case = BRANCH_SETS[branch_set]
    net = case.operator()
    bare = plan(net, {"^$": case.branches})
    report = verify(
        net,
        bare.with_scales(mixed_sign_scales(bare, seed)),
        rule.optimizer,
        steps,
        route=rule.route,
        allow_inexact=rule.allow_inexact,
        seed=seed,
    )
    return Row(rule=label, branch_set=branch_set, report=report)


def _mixed_signs(channels: int, draw: torch.Generator) -> torch.Tensor:
    sizes = torch.empty(channels, dtype=torch.float64).uniform_(0.3, 1.5, generator=draw)
    signs = torch.randint(0, 2, (channels,), generator=draw) * 2 - 1
    return sizes * signs
