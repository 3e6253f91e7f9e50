"""A job: what to train, on what, and how."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repopt.data.images import Broken
from repopt.plans.planning import ScalesLike
from repopt.plans.wording import joined
from repopt.train.branch_choice import BranchChoice
from repopt.train.methods import LEARN, Method
from repopt.train.recipe import Recipe

# of scales that are learned: after 40 epochs of mini-ImageNet as good as searched ones, see docs/results.md
LEARNING: Mapping[str, Any] = {"freeze_at": 0.3, "scale_lr": 10.0}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train, on what, and how.

    Attributes:
        method: one of `METHODS`.
        model: the name of the plain model, or a reference such as `timm:resnet18`.
        data: as `load_data` takes it.
        recipe: how.
        scales: of the imagined blocks; `learn` searches them in the first part of the training.
        weights: a checkpoint to start from, instead of drawing weights.
        limit: keep that many images.
        broken: what to do with images that cannot be decoded.
        options: the model's own, such as strides.
        branches: a preset, or names of branches by regular expression, see `repopt.train.branch_choice`; the model's
            own unless given, or else `repvgg`.
    """

    method: Method
    model: str
    data: str
    recipe: Recipe
    scales: ScalesLike | None = None
    weights: Path | None = None
    limit: int | None = None
    broken: Broken = "raise"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    branches: BranchChoice | None = None


def as_learned(job: Job) -> Job:
    """The job, with how long and how fast it learns its scales, if it does.

    Raises:
        ValueError: it says how long or how fast, and does not learn them.
    """
    if job.scales != LEARN:
        _check_learns(job)
        return job
    usual = {name: value for name, value in LEARNING.items() if getattr(job.recipe, name) is None}
    return dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, **usual))


def flags_without(fields: Iterable[str]) -> list[str]:
    """What takes fields out of a recipe on the command line, such as --freeze-at None."""
    return [word for field in fields for word in (f"--{field.replace('_', '-')}", "None")]


def _check_learns(job: Job) -> None:
    """Raises where a recipe says how a training learns scales, and it does not; a search learns them to its end."""
    given = [name for name in LEARNING if getattr(job.recipe, name) is not None]
    if job.recipe.scale_lr == 1:  # as every recipe had it once, and no matter
        given.remove("scale_lr")
    if job.method == "search":
        given = [name for name in given if name == "freeze_at"]
    if given:
        verb, without = "is" if len(given) == 1 else "are", " ".join(flags_without(given))
        instead = {"search": "a search learns them to its end, so give", "repopt": "give --scales learn, or"}
        other = instead.get(job.method, "give --method repopt --scales learn, or")
        raise ValueError(f"{joined(given)} {verb} for scales that are learned in a training: {other} {without}")
