"""The cases that stand for the claim of equality: branch sets x update rules, with scales of both signs.

`repopt verify` runs it, and the tests are parametrized from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from repopt.algebra.branches import Branch, Conv, Identity, Linear
from repopt.algebra.operators import LinearOperator
from repopt.optim import Adam, AdamW, Lion, RepOptimizer
from repopt.optim.attachment import Route
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import Scales
from repopt.verification.equality import OptimizerFactory, Report, verify
from repopt.verification.waiting import counting


@dataclass(frozen=True, kw_only=True)
class BranchSet:
    """An operator and the branches that it imagines."""

    operator: Callable[[], LinearOperator]
    branches: tuple[Branch, ...]


@dataclass(frozen=True, kw_only=True)
class OptimizerCase:
    """An optimizer with its options.

    Attributes:
        optimizer: makes it from parameters; one of repopt.optim takes the plan as well.
        reference: the real block's, where it is another one.
        max_norm: to clip to, at every step.
    """

    optimizer: OptimizerFactory
    reference: OptimizerFactory | None = None
    route: Route = "auto"
    allow_inexact: bool = False
    max_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What one case came to, as `repopt verify` prints it."""

    rule: str
    branch_set: str
    report: Report

    @property
    def passed(self) -> bool:
        return not self.report.exact or self.report.passed


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
    "depthwise 1x1, identity first": BranchSet(
        operator=lambda: nn.Conv2d(6, 6, 1, groups=6, bias=False), branches=(Identity(), Conv(1))
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
    "two linear": BranchSet(operator=lambda: nn.Linear(6, 5, bias=False), branches=(Linear(), Linear())),
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


def _stock(rule: Callable[..., Optimizer], lr: float = 0.01, **options: Any) -> OptimizerCase:
    return OptimizerCase(optimizer=partial(rule, lr=lr, **options))


STOCK_RULES: Mapping[str, OptimizerCase] = {
    "ASGD": _stock(torch.optim.ASGD, lr=0.05, weight_decay=0.01),
    "AdamW": _stock(torch.optim.AdamW, weight_decay=0.1),
    "AdamW, fused": _stock(torch.optim.AdamW, weight_decay=0.1, fused=True),
    "Adam": _stock(torch.optim.Adam),
    "Adam, coupled L2": _stock(torch.optim.Adam, weight_decay=0.1),
    "Adamax": _stock(torch.optim.Adamax),
    "NAdam": _stock(torch.optim.NAdam),
    "Adagrad": _stock(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "RMSprop": _stock(torch.optim.RMSprop, momentum=0.9, centered=True, lr=0.001),
    "RAdam": _stock(torch.optim.RAdam),
    "Adadelta": _stock(torch.optim.Adadelta, lr=1.0),
    "Rprop": _stock(torch.optim.Rprop),
    "Adafactor": _stock(torch.optim.Adafactor),
}

# Muon takes matrices only, and torch has it from 2.9 on.
MATRIX_RULES: Mapping[str, OptimizerCase] = {"Muon": _stock(torch.optim.Muon)} if hasattr(torch.optim, "Muon") else {}


def _closed(rule: Callable[..., RepOptimizer], reference: Callable[..., Optimizer], **options: Any) -> OptimizerCase:
    return OptimizerCase(optimizer=partial(rule, lr=0.01, **options), reference=partial(reference, lr=0.01, **options))


def _plain_lion(params: Iterable[nn.Parameter], **options: Any) -> Optimizer:
    """Lion without a plan: torch has none."""
    return Lion(params, Plan.empty(nn.Module()), **options)


CLOSED_RULES: Mapping[str, OptimizerCase] = {
    "closed AdamW": _closed(AdamW, torch.optim.AdamW, weight_decay=0.1),
    "closed AdamW, eps": _closed(AdamW, torch.optim.AdamW, eps=1e-3),
    "closed AdamW, ams": _closed(AdamW, torch.optim.AdamW, amsgrad=True),
    "closed Adam": _closed(Adam, torch.optim.Adam),
    "closed Adam, eps": _closed(Adam, torch.optim.Adam, eps=1e-3, amsgrad=True),
    "closed Lion": _closed(Lion, _plain_lion, weight_decay=0.1),
}

CLIPPED_RULES: Mapping[str, OptimizerCase] = {
    f"{label}, clipped": replace(rule, max_norm=0.05)
    for label, rule in {
        "SGD": SGD_RULES["SGD, nesterov, L2"],
        "AdamW": STOCK_RULES["AdamW"],
        "closed AdamW": CLOSED_RULES["closed AdamW, eps"],
    }.items()
}

# Shown for what they are: the gradient is multiplied, and the two models drift apart.
INEXACT_RULES: Mapping[str, OptimizerCase] = {
    "AdamW, forced": OptimizerCase(optimizer=partial(torch.optim.AdamW, lr=0.01), route="grad", allow_inexact=True),
}


def mixed_sign_scales(bare: Plan, seed: int = 0) -> Scales:
    """One number per output channel, of either sign and of magnitude 0.3 to 1.5."""
    draw = torch.Generator().manual_seed(seed)
    return Scales(
        {
            name: {branch: _mixed_signs(scale.numel(), draw) for branch, scale in branches.items()}
            for name, branches in Scales.ones(bare).items()
        }
    )


def run_matrix(steps: int = 50, seed: int = 0) -> Iterator[CaseResult]:
    """Yields every branch set under one rule, then every other rule on RepVGG's branches."""
    main = "SGD, nesterov, L2"
    others = {**SGD_RULES, **STOCK_RULES, **CLOSED_RULES, **CLIPPED_RULES, **INEXACT_RULES}
    rows = [
        *((main, SGD_RULES[main], name) for name in BRANCH_SETS),
        *((label, rule, "RepVGG") for label, rule in others.items() if label != main),
        *((label, rule, "two linear") for label, rule in MATRIX_RULES.items()),
    ]
    with counting("verify, rows", len(rows)) as advance:
        for row in rows:
            yield run_row(*row, steps, seed)
            advance()


def run_row(label: str, rule: OptimizerCase, branch_set: str, steps: int = 50, seed: int = 0) -> CaseResult:
    """Verifies one rule on one branch set."""
    case = BRANCH_SETS[branch_set]
    net = case.operator()
    bare = plan(net, {"^$": case.branches})
    planned = bare.with_scales(mixed_sign_scales(bare, seed))
    report = verify(
        net,
        planned,
        rule.optimizer,
        steps,
        reference=rule.reference,
        route=rule.route,
        allow_inexact=rule.allow_inexact,
        max_norm=rule.max_norm,
        seed=seed,
    )
    return CaseResult(rule=label, branch_set=branch_set, report=report)


def _mixed_signs(channels: int, draw: torch.Generator) -> torch.Tensor:
    sizes = torch.empty(channels, dtype=torch.float64, device="cpu").uniform_(0.3, 1.5, generator=draw)
    signs = torch.randint(0, 2, (channels,), generator=draw, device="cpu") * 2 - 1
    return sizes * signs
