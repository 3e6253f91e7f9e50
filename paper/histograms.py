"""What happens to a 3x3 kernel on its way to deployment, as histograms: of RepVGG, and of RepOpt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paper.evidence import ON_CPU
from paper.jobs import Lines, Scope, Training
from paper.kernel_spread import at_positions, run_kernels
from paper.table8 import STAGES
from paper.tables import Table
from paper.view import Record, over_rows
from paper.workshop import ENVIRONMENT, Workshop, figures_of

_BINS = 61
_REACH = 3  # times the root mean square at the centre of what is deployed, shown to both sides of 0


def _histograms(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run = training.run(scope, seed, workshop, weights=True)
    found = run_kernels(run)
    about = {**figures_of(run), "layer": found.layer.name}
    *_, (deployed, _) = found.kernels.values()
    limit = _REACH * at_positions(deployed)["central"].square().mean().sqrt().item()
    return [
        {**about, "step": step, "position": position, "bin": bin, "limit": limit, "share": share}
        for step, (kernel, _) in found.kernels.items()
        for position, values in at_positions(kernel).items()
        if position != "overall"
        for bin, share in enumerate(_shares(values, limit))
    ]


def _shares(values: Tensor, limit: float) -> list[float]:
    """The share of the numbers in each bin between -limit and limit."""
    return (torch.histc(values.float(), bins=_BINS, min=-limit, max=limit) / values.numel()).tolist()


def _root_mean_square(rows: Sequence[Record]) -> str:
    """The root mean square of what the histogram shows."""
    middles = [float(row["limit"]) * ((2 * int(row["bin"]) + 1) / _BINS - 1) for row in rows]
    square = sum(float(row["share"]) * middle**2 for row, middle in zip(rows, middles, strict=True))
    return f"{square**0.5:.3f}"


HISTOGRAMS = Table(
    title="Kernels on their way to deployment",
    keys=("trained_by", "model", "seed"),
    trainings=[
        Training(key={"trained_by": method}, method=method, measure=_histograms, one_seed=True, **ON_CPU)
        for method in ("repvgg", "repopt")
    ],
    figures=("layer", "step", "position", "bin", "limit", "share", "epochs", "kernel", *ENVIRONMENT),
    by=("trained_by", "step", "position"),
    order={"step": STAGES},
    columns=["trained_by", "step", "position", "layer", over_rows("root mean square", _root_mean_square)],
)
