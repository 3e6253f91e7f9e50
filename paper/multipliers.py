"""What scales imply: how fast a kernel's taps learn, stage by stage, and how many hardly learn at all."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paper.jobs import SEARCH_SEED, Lines, Scope, Source, Training, planned, scales_from
from paper.studies import VGGS
from paper.tables import Table
from paper.view import number
from paper.workshop import ENVIRONMENT, Workshop
from repopt.device import environment

_FROZEN = 1e-3  # a tap whose gradient is multiplied by less hardly moves in training
_FIGURES = ("around", "centre", "diagonal", "variation", "frozen", "negative")


def _measure(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    model = scope.model(training.model)
    assert training.scales is not None
    scales = scales_from(training.scales, scope, workshop, model)
    plan, stages = planned(model).with_scales(scales), dict[str, list[dict[str, Tensor]]]()
    for operator, block in plan.blocks.items():
        multiplier, identity = plan.multiplier(operator).dense(), "identity" in block.branches
        found = operator_figures(multiplier, scales[operator]["conv3x3"], identity=identity)
        stages.setdefault(operator.partition(".")[0], []).append(found)
    return [
        {"stage": stage, "operators": len(found), **mean_figures(found), **environment("cpu")}
        for stage, found in stages.items()
    ]


def operator_figures(multiplier: Tensor, scale: Tensor, *, identity: bool) -> dict[str, Tensor]:
    """Multipliers by position, how much the scales of the 3x3 branch vary, and which taps are frozen or negative."""
    around, centre = multiplier[:, 0, 0, 0], multiplier[:, :, 1, 1]
    return {
        "around": around,
        "centre": torch.cat([centre[:1, -1], centre[1:, 0]]),  # off the diagonal: a channel has the same for all inputs
        **({"diagonal": centre.diagonal()} if identity else {}),
        "variation": scale.std() / scale.abs().mean(),
        "frozen": around.lt(_FROZEN).double(),
        "negative": scale.lt(0).double(),
    }


def mean_figures(operators: Sequence[Mapping[str, Tensor]]) -> dict[str, float | None]:
    """Means over the operators of a stage, which all have its width."""
    found = {name: [each[name].mean() for each in operators if name in each] for name in _FIGURES}
    return {name: torch.stack(means).mean().item() if means else None for name, means in found.items()}


def _row(size: str, whose: str, scales: Source) -> Training:
    key = {"scales": whose, "seed": SEARCH_SEED}
    return Training(model=size, key=key, scales=scales, data="", measure=_measure)


TABLE = Table(
    title="What the scales multiply gradients by",
    keys=("model", "scales", "seed"),
    trainings=[
        *(_row(size, "ours", "searched") for size in VGGS),
        *(_row(size, "authors", "authors") for size in ("b1", "b2", "l1", "l2")),
    ],
    figures=("stage", "operators", *_FIGURES, *ENVIRONMENT),
    columns=[
        *("model", "scales", "stage", number("operators")),
        *(number(position, form="{:.3f}") for position in ("around", "centre", "diagonal")),
        number("variation", form="{:.2f}"),
        *(number(share, form="{:.1%}") for share in ("frozen", "negative")),
    ],
)
