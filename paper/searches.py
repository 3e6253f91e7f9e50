"""Finished searches, as appendix E compares them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repopt.plans.scales import Scales
from repopt.report.searched_scales import by_depth, over_epochs
from repopt.train.records import Means, read_run


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """A finished Hyper-Search.

    Attributes:
        name: of its run.
        model: whose scales were searched.
        data: on what.
        seed: of the run.
        history: the means after each epoch, epoch 0 being the start.
        scales: what was found.
    """

    name: str
    model: str
    data: str
    seed: int
    history: Mapping[int, Means]
    scales: Scales

    @property
    def means(self) -> Means:
        """After the last epoch."""
        return self.history[max(self.history)]

    @property
    def start(self) -> Means:
        return self.history[min(self.history)]


def read_search(folder: str | Path, name: str) -> Search:
    """Reads the folder of a finished search.

    Args:
        folder: the run.
        name: what to call it.

    Raises:
        ValueError: it is no search, or not finished.
    """
    run, scales = read_run(folder), Path(folder, "scales.safetensors")
    if run.info.method != "search":
        raise ValueError(f"{str(folder)!r} is a run of the method {run.info.method}: give the folder of a search")
    if not run.scales or not scales.exists():
        raise ValueError(f"the search in {str(folder)!r} is not finished: it has no scales yet")
    return Search(
        name=name,
        model=run.info.model,
        data=run.info.data,
        seed=run.info.seed,
        history=run.scales,
        scales=Scales.load(scales),
    )


def check_comparable(searches: Sequence[Search]) -> None:
    """Raises unless all searches found scales of the same shapes."""
    first = searches[0]
    for other in searches[1:]:
        if _shapes(other.scales) != _shapes(first.scales):
            raise ValueError(
                f"{first.name!r} searched {first.model} and {other.name!r} {other.model}, whose scales differ in "
                "shape: compare searches of one model"
            )


def points(search: Search, operator: str) -> list[dict[str, Any]]:
    """The points of both curves of appendix E, flat: of one operator over epochs, and of all by depth."""
    about = {"run": search.name, "model": search.model, "data": search.data, "seed": search.seed}
    operators, last = list(search.means), max(search.history)
    followed = [
        {"curve": "over epochs", "operator": operator, "epoch": epoch, "branch": branch, "mean": mean}
        for branch, means in over_epochs(search.history, operator).items()
        for epoch, mean in means.items()
    ]
    deep = [
        {"curve": "by depth", "operator": operators[place - 1], "epoch": last, "branch": branch, "mean": mean}
        for branch, pieces in by_depth(search.means).items()
        for piece in pieces
        for place, mean in piece.items()
    ]
    return [{**point, **about} for point in (*followed, *deep)]


def _shapes(scales: Scales) -> dict[str, dict[str, int]]:
    return {operator: {branch: scale.numel() for branch, scale in found.items()} for operator, found in scales.items()}
