"""What is compared on what: the request, and the jobs that it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from repopt.compare.budget import Extent
from repopt.compare.ways import Way
from repopt.train.branch_choice import BranchChoice
from repopt.train.job import LEARNING, Job
from repopt.train.methods import LEARN, plans_branches
from repopt.train.recipe import Recipe

# rates that are tried, times the recipe's: inits that differ in size want rates that differ by more than 2
_TRIED, _FURTHER = (0.3, 1.0, 3.0), (0.03, 0.1, 10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared on what.

    Attributes:
        model: a name or a reference.
        data: as `load_data` takes it.
        ways: to train the model.
        recipe: of all trainings, in full; its rate and seed are the first.
        rates: learning rates that each way is trained at.
        further: rates below and above those, for a way that is best at the lowest or at the highest.
        seeds: how many of each way.
        limit: keep that many images.
        options: of the model.
        branches: of the ways that plan some; as a `Job` takes them.
    """

    model: str
    data: str
    ways: tuple[Way, ...]
    recipe: Recipe
    rates: tuple[float, ...]
    seeds: int
    further: tuple[float, ...] = ()
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    branches: BranchChoice | None = None

    @property
    def extent(self) -> Extent:
        """With one further rate for each way: some need none, some two."""
        return Extent(epochs=self.recipe.epochs, seeds=self.seeds, rates=len(self.rates) + (1 if self.further else 0))

    @property
    def own_seeds(self) -> range:
        """The recipe's seed and those after it."""
        return range(self.recipe.seed, self.recipe.seed + self.seeds)

    def job(self, way: Way, rate: float, seed: int) -> Job:
        """One training."""
        fields: dict[str, Any] = {"lr": rate, "seed": seed, "kernel": way.kernel or self.recipe.kernel}
        fields |= {} if way.scales == LEARN else dict.fromkeys(LEARNING)
        return Job(
            method=way.method,
            model=self.model,
            data=self.data,
            recipe=replace(self.recipe, **fields),
            scales=way.scales,
            limit=self.limit,
            options=dict(self.options),
            branches=self.branches if plans_branches(self.model, way.method) else None,
        )


def rates_around(lr: float) -> tuple[float, ...]:
    """The learning rates that are tried where none is given.

    Example:
        >>> rates_around(0.1)
        (0.03, 0.1, 0.3)
    """
    return _times(lr, _TRIED)


def rates_beyond(lr: float) -> tuple[float, ...]:
    """Those that are tried next where the lowest or the highest of `rates_around` is the best.

    Example:
        >>> rates_beyond(0.1)
        (0.003, 0.01, 1.0, 3.0)
    """
    return _times(lr, _FURTHER)


def _times(lr: float, factors: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{factor * lr:.6g}") for factor in factors)
