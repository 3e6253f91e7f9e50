"""What scales imply: how fast a kernel's taps learn, stage by stage, and how many hardly learn at all."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from paper.jobs import SEARCH_SEED, Scope, Source, has_identity, planned, scales_from
from paper.tables import Table, TableRow
from paper.view import View, number
from paper.workshop import Workshop
from repopt.device import environment
from repopt.plans.planning import Plan
from repopt.plans.scales import Scales, shipped

_FROZEN = 1e-3  # a tap whose gradient is multiplied by less hardly moves in training
_FIGURES = ("stage", "operators", "around", "centre", "diagonal", "variation", "frozen", "negative")


def _rows(scope: Scope) -> Iterator[TableRow]:
    ours = ["repopt_vgg_nano"] if scope.quick else [name for name in shipped() if "_vgg_" in name]
    theirs = [] if scope.quick else [f"repopt_vgg_{size}" for size in ("b1", "b2", "l1", "l2")]
    for whose, model in [*product(["ours"], ours), *product(["authors"], theirs)]:
        key = {"model": model, "scales": whose, "seed": SEARCH_SEED}
        measure = partial(_measure, scope, model, "authors" if whose == "authors" else "searched")
        yield TableRow(key=key, measure=measure, authors=whose == "authors")


def _measure(scope: Scope, model: str, source: Source, workshop: Workshop) -> list[dict[str, Any]]:
    scales = scales_from(source, scope, workshop, model)
    plan, stages = planned(model).with_scales(scales), dict[str, list[str]]()
    for operator in plan.operators:
        stages.setdefault(operator.partition(".")[0], []).append(operator)
    return [
        {"stage": stage, **_stage_figures(plan, scales, operators), **environment("cpu")}
        for stage, operators in stages.items()
    ]


def _stage_figures(plan: Plan, scales: Scales, operators: Sequence[str]) -> dict[str, Any]:
    """Means over the operators of a stage, of multipliers by position and of how channels differ."""
    kernels = {operator: plan.multiplier(operator).dense() for operator in operators}
    around = [kernel[:, 0, 0, 0] for kernel in kernels.values()]
    diagonal = [kernel[:, :, 1, 1].diagonal() for operator, kernel in kernels.items() if has_identity(plan, operator)]
    searched = [scales[operator]["conv3x3"] for operator in operators]
    return {
        "operators": len(operators),
        "around": _mean_of_means(around),
        "centre": _mean_of_means([_off_diagonal(kernel[:, :, 1, 1]) for kernel in kernels.values()]),
        "diagonal": _mean_of_means(diagonal) if diagonal else None,
        "variation": _mean_of_means([scale.std() / scale.abs().mean() for scale in searched]),
        "frozen": torch.cat(around).lt(_FROZEN).double().mean().item(),
        "negative": torch.cat(searched).lt(0).double().mean().item(),
    }


def _mean_of_means(values: Sequence[Tensor]) -> float:
    return torch.stack([each.mean() for each in values]).mean().item()


def _off_diagonal(centre: Tensor) -> Tensor:
    """One value of each output channel that is not the identity's: all its other inputs have the same."""
    return torch.cat([centre[:1, -1], centre[1:, 0]])


TABLE = Table(
    title="What the scales multiply gradients by",
    keys=("model", "scales", "seed"),
    others=_rows,
    figures=(*_FIGURES, "hardware", "threads", "python", "torch", "date"),
    view=View(
        columns=[
            *("model", "scales", "stage", number("operators")),
            *(number(position, form="{:.3f}") for position in ("around", "centre", "diagonal")),
            number("variation", form="{:.2f}"),
            *(number(share, form="{:.1%}") for share in ("frozen", "negative")),
        ],
    ),
)
