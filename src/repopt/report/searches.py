"""Searched scales, as appendix E shows them: the mean of a branch's scales over epochs, and by depth.

What a search costs, as a share of ImageNet training:

    share = images / 1,281,167 x epochs / 120 x (image size / 224)^2

The paper's figure (section 4.1) has another factor (3x3 + 1x1) / (3x3) = 10/9, as its blocks convolve once per branch;
a search block of repopt merges the kernels first and convolves once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repopt.plans.scales import Scales
from repopt.train.records import read_run

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


def cost_share(images: int, epochs: int, image_size: int) -> float:
    """The cost of a search as a fraction of the paper's ImageNet training.

    Example:
        >>> f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}"  # the paper's figure, with its two convolutions per block
        '0.18%'
    """
    return images / 1_281_167 * epochs / 120 * (image_size / 224) ** 2


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
