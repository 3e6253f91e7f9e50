"""Appendix E's figures: searched scales over epochs and by depth, from two data sets."""

from collections.abc import Sequence

import torch

from paper.jobs import SEARCH_SEED, Lines, Scope, Training, hyper_search, planned
from paper.panels import scales_by_depth, scales_over_epochs
from paper.ranks import spearman
from paper.searches import Search, points, read_search
from paper.tables import Table
from paper.view import Column, Line, Record, groups, matching, text
from paper.workshop import ENVIRONMENT, Workshop, figures_of
from repopt.plans.scales import Scales
from repopt.report.figures import standing_alone
from repopt.train.records import sampled_operator

_SOURCES = ("cifar100", "imagenette")
_SHOWN = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # shares of a search's epochs


def _points(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run = training.run(scope, seed, workshop)
    search, about = read_search(run, run.name), figures_of(run)
    return [{**about, **point} for point in points(search, sampled_operator(search.means))]


def _at(share: float) -> Column:
    def cell(line: Line) -> str:
        by_epoch = {int(row["epoch"]): float(row["mean"]) for row in line.rows}
        return f"{by_epoch[round(share * max(by_epoch))]:.3f}"

    return Column(f"{share:.0%}", cell)


def rank_correlations_by_depth(rows: Sequence[Record]) -> dict[str, tuple[float | None, float | None]]:
    """{branch: how alike two searches rank the operators' final means, and their change from the shared start}."""
    found, deep = {}, matching(rows, curve="by depth")
    start = Scales.depth_init(planned(deep[0]["model"])) if deep else Scales({})
    for (branch,), means in groups(deep, "branch").items():
        one, other = (
            {row["operator"]: float(row["mean"]) for row in matching(means, source=source)} for source in _SOURCES
        )
        shared = [operator for operator in one if operator in other]
        pair = torch.tensor([[each[operator] for operator in shared] for each in (one, other)])
        begun = torch.tensor([float(start[operator].get(branch, torch.ones(1)).mean()) for operator in shared])
        found[branch] = (spearman(*pair), spearman(*(pair / begun)))
    return found


def drawings(rows: Sequence[Record]) -> dict[str, str]:
    """Both figures, one panel for each search."""
    searches = [read_back(source, found) for (source,), found in groups(rows, "source").items()]
    followed = matching(rows, curve="over epochs")[0]["operator"]
    return {
        "epochs": standing_alone(scales_over_epochs(searches, followed)),
        "depth": standing_alone(scales_by_depth(searches)),
    }


def read_back(source: str, rows: Sequence[Record]) -> Search:
    """A search as far as its points go: all means after the last epoch, one operator's before."""
    history: dict[int, dict[str, dict[str, float]]] = {
        epoch: {} for epoch in sorted({int(row["epoch"]) for row in rows})
    }
    for row in sorted(rows, key=lambda row: row["curve"]):  # by depth first: in the order of the operators
        history[int(row["epoch"])].setdefault(row["operator"], {})[row["branch"]] = float(row["mean"])
    seed, model = int(rows[0]["seed"]), rows[0]["model"]
    return Search(name=model, model=model, data=source, seed=seed, history=history, scales=Scales({}))


TABLE = Table(
    title="Appendix E: scales over epochs and by depth",
    keys=("source", "model", "seed"),
    trainings=[
        hyper_search(model="b0", key={"source": data, "seed": SEARCH_SEED}, data=data, measure=_points)
        for data in _SOURCES
    ],
    figures=("curve", "operator", "epoch", "branch", "mean", "commit", *ENVIRONMENT),
    by=("source", "branch"),
    where={"curve": "over epochs"},
    columns=[text("source", "searched on"), "branch", *map(_at, _SHOWN)],
)
