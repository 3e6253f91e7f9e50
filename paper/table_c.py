"""Appendix C's second table: the spread of a kernel on its way from training to deployment."""

from pathlib import Path
from typing import Any

from paper.jobs import Scope
from paper.kernel_spread import POSITIONS, run_kernels, spreads
from paper.table8 import trained_b0
from paper.tables import Table
from paper.view import SEEDS, Column, Line, View, mean, number, papers, text
from paper.workshop import Workshop, figures_of
from repopt.train.methods import Method

_METHODS: tuple[Method, ...] = ("repvgg", "repopt")
_AT_INIT = tuple(f"{position}_at_init" for position in POSITIONS)
_ENVIRONMENT = ("epochs", "kernel", "hardware", "threads", "python", "torch", "date")
_STAGES = ("before fusing BN", "3x3 kernel", "after fusing BN", "after branch addition")
_PAPER = {
    ("repvgg", "before fusing BN"): "0.0131, 0.0128, 0.0131",
    ("repvgg", "after fusing BN"): "0.0176, 0.0175, 0.0177",
    ("repvgg", "after branch addition"): "0.0236, 0.0500, 0.0177",
    ("repopt", "3x3 kernel"): "0.0066, 0.0151, 0.0045",
}


def _read(scope: Scope, workshop: Workshop, run: Path) -> list[dict[str, Any]]:
    found = run_kernels(run)
    about = {**figures_of(run), "layer": found.layer.name}
    return [{**about, "stage": step, **spreads(*kernels)} for step, kernels in found.kernels.items()]


def _ratio(line: Line) -> str:
    return f"{mean(line.rows, 'central') / mean(line.rows, 'surrounding'):.1f}"


TABLE = Table(
    title="Appendix C: the spread of a kernel",
    keys=("trained_by", "model", "seed"),
    trainings=[trained_b0(method) for method in _METHODS],
    read=_read,
    weights=True,
    figures=("layer", "stage", *POSITIONS, *_AT_INIT, *_ENVIRONMENT),
    view=View(
        by=("trained_by", "stage"),
        order={"trained_by": _METHODS, "stage": _STAGES},
        columns=[
            *("trained_by", text("stage", "kernel"), SEEDS),
            *(number(position, form="{:.4f}") for position in POSITIONS),
            Column("central / surrounding", _ratio),
            *(number(f"{position}_at_init", f"{position}, at init", "{:.4f}") for position in POSITIONS),
            papers("paper", _PAPER, "trained_by", "stage"),
        ],
    ),
)
