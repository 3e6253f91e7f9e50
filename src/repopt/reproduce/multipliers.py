"""What scales imply: how fast a kernel's taps learn, stage by stage, and how many hardly learn at all."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from repopt.plans import Plan
from repopt.reproduce.jobs import authors_scales, planned, scales_from
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import markdown
from repopt.reproduce.tables import Record, Row, Table
from repopt.reproduce.workshop import Workshop
from repopt.results import environment
from repopt.scales import Scales, shipped

_FROZEN = 1e-3  # a tap whose gradient is multiplied by less hardly moves in training
_AUTHORS = ("b1", "b2", "l1", "l2")
_FIGURES = ("stage", "operators", "around", "centre", "diagonal", "variation", "frozen", "negative")


def _rows(scope: Scope) -> Iterator[Row]:
    sizes = ["nano"] if scope.quick else [name.rpartition("_")[2] for name in shipped() if "_vgg_" in name]
    for size in sizes:
        yield _row(scope, size, "ours")
    for size in _AUTHORS if scope.authors is not None and not scope.quick else ():
        yield _row(scope, size, "authors")


def _row(scope: Scope, size: str, whose: str) -> Row:
    model = f"repopt_vgg_{size}"

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        scales = authors_scales(scope, model) if whose == "authors" else scales_from("searched", scope, workshop, model)
        plan = planned(model).with_scales(scales)
        stages: dict[str, list[str]] = {}
        for operator in plan.operators:
            stages.setdefault(operator.partition(".")[0], []).append(operator)
        return [
            {"stage": stage, **_stage_figures(plan, scales, operators), **environment("cpu")}
            for stage, operators in stages.items()
        ]

    return Row(key={"model": model, "scales": whose, "seed": scope.seeds[0]}, measure=measure, minutes=0.0)


def _stage_figures(plan: Plan, scales: Scales, operators: Sequence[str]) -> dict[str, Any]:
    """Means over the operators of a stage, of multipliers by position and of how channels differ."""
    kernels = [plan.multiplier(operator).dense() for operator in operators]
    diagonal = [_diagonal(kernel) for kernel in kernels if kernel.shape[0] == kernel.shape[1]]
    around = torch.stack([kernel[:, 0, 0, 0].mean() for kernel in kernels])
    searched = [scales[operator]["conv3x3"] for operator in operators]
    return {
        "operators": len(operators),
        "around": around.mean().item(),
        "centre": torch.stack([_off_diagonal(kernel).mean() for kernel in kernels]).mean().item(),
        "diagonal": torch.stack([values.mean() for values in diagonal]).mean().item() if diagonal else None,
        "variation": torch.stack([(scale.std() / scale.abs().mean()) for scale in searched]).mean().item(),
        "frozen": torch.cat([kernel[:, 0, 0, 0] for kernel in kernels]).lt(_FROZEN).double().mean().item(),
        "negative": torch.cat(searched).lt(0).double().mean().item(),
    }


def _diagonal(kernel: Tensor) -> Tensor:
    return kernel[:, :, 1, 1].diagonal()


def _off_diagonal(kernel: Tensor) -> Tensor:
    """The centre's values beside the identity's: those of each output channel's last or first input."""
    centre = kernel[:, :, 1, 1]
    return torch.cat([centre[:1, -1], centre[1:, 0]])


def _part(rows: Sequence[Record]) -> list[str]:
    cells = [
        (
            row["model"],
            row["scales"],
            row["stage"],
            row["operators"],
            *(f"{float(row[column]):.3f}" if row[column] else "" for column in ("around", "centre", "diagonal")),
            f"{float(row['variation']):.2f}",
            *(f"{float(row[column]):.1%}" for column in ("frozen", "negative")),
        )
        for row in rows
    ]
    columns = {"model": "<", "scales": "<", "stage": "<", "operators": ">", "around": ">", "centre": ">"}
    return [
        "What the scales multiply gradients by, averaged over channels: taps around the centre, the centre, and the "
        "centre's diagonal where there is an identity. Beside a plain model, a tap's learning rate is that many times "
        "as "
        f"high. frozen: channels whose taps around the centre are multiplied by less than {_FROZEN:g}. variation: "
        "deviation "
        "of a layer's 3x3 scales over its channels, as a share of their mean. ours: those that ship; authors: "
        "released by "
        "the paper's authors.",
        "",
        *markdown({**columns, "diagonal": ">", "variation": ">", "frozen": ">", "negative": ">"}, cells),
    ]


TABLE = Table(
    name="multipliers",
    title="What the scales imply",
    keys=("model", "scales", "seed"),
    rows=_rows,
    part=_part,
    figures=(*_FIGURES, "hardware", "threads", "python", "torch", "date"),
)
