"""Searched scales, as appendix E looks at them: the mean of a branch's scales over epochs, and by depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repopt.plans.scales import Scales

Means = Mapping[str, Mapping[str, float]]  # {operator: {branch: mean over channels}}


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


def check_comparable(searches: Sequence[Search]) -> None:
    """Raises unless all searches found scales of the same shapes."""
    first = searches[0]
    for other in searches[1:]:
        if _shapes(other.scales) != _shapes(first.scales):
            raise ValueError(
                f"{first.name!r} searched {first.model} and {other.name!r} {other.model}, whose scales differ in "
                "shape: compare searches of one model"
            )


def stages(means: Means) -> list[list[str]]:
    """The operators by stage: one without identity starts a stage, as it changes the shape."""
    found: list[list[str]] = []
    for operator, branches in means.items():
        if not found or ("identity" not in branches and _any_identity(means)):
            found.append([])
        found[-1].append(operator)
    return found


def sampled_operator(means: Means) -> str:
    """The last operator with an identity of the longest stage: in a RepOpt-VGG, the last block of the third stage."""
    longest = max(stages(means), key=len)
    return [operator for operator in longest if "identity" in means[operator] or not _any_identity(means)][-1]


def branches(means: Means) -> list[str]:
    """All branches, the identity last."""
    found = dict.fromkeys(branch for operator in means.values() for branch in operator)
    return sorted(found, key=lambda branch: branch == "identity")


def over_epochs(history: Mapping[int, Means], operator: str) -> dict[str, dict[int, float]]:
    """{branch: {epoch: mean of the operator's scales}}, for all branches of the model."""
    names = branches(history[max(history)])
    own = {epoch: means.get(operator, {}) for epoch, means in history.items()}
    return {branch: {epoch: means[branch] for epoch, means in own.items() if branch in means} for branch in names}


def by_depth(means: Means) -> dict[str, list[dict[int, float]]]:
    """{branch: [{place of the operator: mean of its scales} for each stage]}, places counted from 1."""
    place = {operator: number for number, operator in enumerate(means, start=1)}

    def pieces(branch: str, members: Sequence[str]) -> dict[int, float]:
        return {place[operator]: means[operator][branch] for operator in members if branch in means[operator]}

    return {
        branch: [piece for members in stages(means) if (piece := pieces(branch, members))] for branch in branches(means)
    }


def stage_starts(means: Means) -> list[int]:
    """The places of the stages' first operators."""
    sizes = [len(members) for members in stages(means)]
    return [1 + sum(sizes[:index]) for index in range(len(sizes))]


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


def _any_identity(means: Means) -> bool:
    return any("identity" in branches for branches in means.values())


def _shapes(scales: Scales) -> dict[str, dict[str, int]]:
    return {operator: {branch: scale.numel() for branch, scale in found.items()} for operator, found in scales.items()}
