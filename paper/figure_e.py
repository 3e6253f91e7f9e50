"""Appendix E's figures: searched scales over epochs and by depth, from two data sets."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paper.jobs import planned
from paper.ranks import spearman
from paper.scope import Scope
from paper.summaries import groups, markdown, matching
from paper.table5 import source_search
from paper.tables import Record, Row, Table
from paper.workshop import Workshop, figures_of
from repopt.plans.scales import Scales
from repopt.report import read_search
from repopt.report.searches import Search, points, sampled_operator

_SIZE = "b0"
_SOURCES = ("cifar100", "imagenette")
_SHOWN = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # shares of a search's epochs
_ENVIRONMENT = ("commit", "hardware", "threads", "python", "torch", "date")


def _rows(scope: Scope) -> Iterator[Row]:
    for source in _SOURCES:
        yield _row(scope, source)


def _row(scope: Scope, source: str) -> Row:
    model = scope.model(_SIZE)

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        run = workshop.run(source_search(scope, model, source))
        search, about = read_search(run, source), figures_of(run)
        kept = {column: about[column] for column in _ENVIRONMENT}
        return [
            {**{column: point[column] for column in ("curve", "operator", "epoch", "branch", "mean")}, **kept}
            for point in points(search, sampled_operator(search.means))
        ]

    return Row(key={"source": source, "model": model, "seed": scope.search_seed}, measure=measure, minutes=1.5)


def _part(rows: Sequence[Record]) -> list[str]:
    over, deep = matching(rows, curve="over epochs"), matching(rows, curve="by depth")
    followed = over[0]["operator"]
    lines = [
        f"The paper shows curves from CIFAR-100 and Caltech256; ours are {rows[0]['model']}'s from CIFAR-100 and "
        f"Imagenette, {rows[0]['hardware']}, {rows[0]['date']}. All points are in `results/figureE.csv`. The mean "
        f"scale of `{followed}`, the last block of the longest stage, over a search; Imagenette has a fifth of the "
        "images, so that as many epochs are a fifth of the steps:",
        "",
    ]
    cells = []
    for (source, branch), its in groups(over, "source", "branch").items():
        by_epoch = {int(row["epoch"]): float(row["mean"]) for row in its}
        last = max(by_epoch)
        cells.append((source, branch, *(f"{by_epoch[round(share * last)]:.3f}" for share in _SHOWN)))
    lines += markdown({"searched on": "<", "branch": "<", **{f"{share:.0%}": ">" for share in _SHOWN}}, cells)
    agreement = list(_agreement(deep))
    if agreement:
        lines += [
            "",
            "Rank correlation of the operators' final means in the two searches, and of how far each has moved from "
            "the start that both share: " + "; ".join(agreement) + ".",
        ]
    return lines


def _drawings(rows: Sequence[Record]) -> dict[str, str]:
    """Both figures, a panel a search."""
    from paper import panels
    from repopt.report.drawing import standing_alone

    searches = [_search(source, its) for (source,), its in groups(rows, "source").items()]
    followed = matching(rows, curve="over epochs")[0]["operator"]
    return {
        "epochs": standing_alone(panels.scales_over_epochs(searches, followed)),
        "depth": standing_alone(panels.scales_by_depth(searches)),
    }


def _search(source: str, rows: Sequence[Record]) -> Search:
    """A search as far as its points tell it: all means after the last epoch, one operator's before."""
    history: dict[int, dict[str, dict[str, float]]] = {
        epoch: {} for epoch in sorted({int(row["epoch"]) for row in rows})
    }
    for row in sorted(rows, key=lambda row: row["curve"]):  # by depth first: in the order of the operators
        history[int(row["epoch"])].setdefault(row["operator"], {})[row["branch"]] = float(row["mean"])
    seed, model = int(rows[0]["seed"]), rows[0]["model"]
    return Search(name=model, model=model, data=source, seed=seed, history=history, scales=Scales({}))


def _agreement(deep: Sequence[Record]) -> Iterator[str]:
    """How alike the two searches rank the operators, branch by branch."""
    start = Scales.depth_init(planned(deep[0]["model"]))
    for (branch,), its in groups(deep, "branch").items():
        one, other = (
            {row["operator"]: float(row["mean"]) for row in matching(its, source=source)} for source in _SOURCES
        )
        shared = [operator for operator in one if operator in other]
        pair = torch.tensor([[means[operator] for operator in shared] for means in (one, other)])
        begun = torch.tensor([float(start[operator].get(branch, torch.ones(1)).mean()) for operator in shared])
        found = [spearman(*each) for each in (pair, pair / begun)] if len(shared) > 1 else []
        if found and None not in found:
            yield f"{branch} {found[0]:.2f} and {found[1]:.2f}"


TABLE = Table(
    name="figureE",
    title="Appendix E: scales over epochs and by depth",
    keys=("source", "model", "seed"),
    rows=_rows,
    part=_part,
    figures=("curve", "operator", "epoch", "branch", "mean", *_ENVIRONMENT),
    drawings=_drawings,
)
