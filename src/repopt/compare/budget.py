"""How long a comparison takes, and how many epochs and seeds fit into some minutes.

Each way is trained at every learning rate with the first seed, and at the chosen one with the others. A training costs
a fixed time and one for each epoch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from repopt.train.recipe import Recipe

_FEW, _FEW_SHARE = 5, 0.1  # epochs, and their share of those wanted: before there are fewer, seeds go


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a way to train costs, in seconds.

    Attributes:
        start: of each training, before and after its epochs.
        epoch: of each epoch.
        seed: for each seed at the chosen rate, after its training: INT8.
        once: for the whole way: how fast it infers.
    """

    start: float
    epoch: float
    seed: float = 0.0
    once: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is compared.

    Attributes:
        epochs: of each training.
        seeds: of each way.
        rates: learning rates that are tried with the first seed.
    """

    epochs: int
    seeds: int
    rates: int

    @property
    def trainings(self) -> int:
        """How many there are of each way."""
        return self.rates + self.seeds - 1


def seconds(costs: Sequence[Cost], extent: Extent) -> float:
    """The time of a comparison.

    Example:
        >>> seconds([Cost(start=1, epoch=2, seed=3, once=4)], Extent(epochs=10, seeds=3, rates=2))
        97.0
    """
    count = extent.trainings
    each = (count * (cost.start + extent.epochs * cost.epoch) + extent.seeds * cost.seed + cost.once for cost in costs)
    return float(sum(each))


def fitted(costs: Sequence[Cost], wanted: Extent, minutes: float) -> Extent:
    """The largest extent that fits: fewer epochs, down to a tenth of them; then fewer seeds; then fewer epochs still.

    One epoch and one seed remain, however few the minutes are.
    """
    few = min(wanted.epochs, max(_FEW, math.ceil(_FEW_SHARE * wanted.epochs)))
    for seeds in range(wanted.seeds, 0, -1):
        extent = replace(wanted, seeds=seeds, epochs=min(wanted.epochs, _epochs(costs, seeds, wanted.rates, minutes)))
        if extent.epochs >= few:
            return extent
    return replace(wanted, seeds=1, epochs=max(1, min(few, _epochs(costs, 1, wanted.rates, minutes))))


def _epochs(costs: Sequence[Cost], seeds: int, rates: int, minutes: float) -> int:
    fixed = seconds(costs, Extent(epochs=0, seeds=seeds, rates=rates))
    each = seconds(costs, Extent(epochs=1, seeds=seeds, rates=rates)) - fixed
    return math.floor(min((60 * minutes - fixed) / max(each, 1e-9), 1e9))


def shortened(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe for another number of epochs; the warm-up keeps its share where there are fewer."""
    share = min(1.0, epochs / recipe.epochs)
    return replace(recipe, epochs=epochs, warmup_epochs=round(recipe.warmup_epochs * share, 3))
