"""What a comparison comes to: the rate that a way goes on with, the best way, the noise, and the cost of INT8.

The noise of a difference is two standard errors. Seeds are taken to differ at least as much as the error of so many
validation images, which is all that is known of a single seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repopt.plans.wording import counted, joined
from repopt.train.notes import as_guessing

_NOISE = 2  # standard errors
_FEW_IMAGES = 200


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one way to train; accuracies in percent.

    Attributes:
        name: of the way.
        rates: accuracy of the first seed by learning rate; None where it diverged.
        lr: the rate that was chosen.
        accuracies: by seed, at that rate.
        diverged: how many seeds have none.
        int8: accuracies of the same runs in INT8; none where it was not measured.
        images_per_second: in training.
        peak_bytes: the most memory in training; None on a CPU.
        inference: images per second of the deployed model.
        val_images: that the accuracies are of.
    """

    name: str
    rates: Mapping[float, float | None]
    lr: float
    accuracies: tuple[float, ...]
    diverged: int = 0
    int8: tuple[float, ...] = ()
    images_per_second: float | None = None
    peak_bytes: int | None = None
    inference: float | None = None
    val_images: int

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def error(self) -> float:
        return standard_error(self.accuracies, self.val_images)

    @property
    def int8_accuracy(self) -> float:
        return statistics.fmean(self.int8)

    @property
    def int8_error(self) -> float:
        return standard_error(self.int8, self.val_images)

    @property
    def drop(self) -> float:
        """What INT8 costs."""
        return self.accuracy - self.int8_accuracy


def best_rate(accuracies: Mapping[float, float | None]) -> float:
    """The rate with the highest accuracy, of equals the one nearest to the middle; the lowest if all diverged.

    Example:
        >>> best_rate({0.1: 90.0, 0.3: 92.5}), best_rate({0.03: 90.0, 0.1: 90.0, 0.3: 85.0})
        (0.3, 0.1)
    """
    rates = sorted(accuracies)
    middle = (len(rates) - 1) / 2

    def merit(place: int) -> tuple[float, float]:
        found = accuracies[rates[place]]
        return (-1.0, -place) if found is None else (found, -abs(place - middle))

    return rates[max(range(len(rates)), key=merit)]


def next_rate(accuracies: Mapping[float, float | None], further: Sequence[float]) -> float | None:
    """The rate to try next: below the lowest or above the highest, if that is better than the others; None if not.

    Example:
        >>> next_rate({0.1: 90.0, 0.3: 92.5}, further=[0.01, 0.03, 1.0, 3.0])
        1.0
        >>> next_rate({0.1: 90.0, 0.3: 92.5, 1.0: 91.0}, further=[0.01, 0.03, 3.0])
    """
    rates, best = sorted(accuracies), best_rate(accuracies)
    if _is_tied(accuracies, best):
        return None
    if best == rates[0]:
        return max((rate for rate in further if rate < best), default=None)
    return min((rate for rate in further if rate > best), default=None) if best == rates[-1] else None


def _is_tied(accuracies: Mapping[float, float | None], rate: float) -> bool:
    """Whether another rate did as well, as at chance or on few images."""
    reached = accuracies[rate]
    return reached is not None and list(accuracies.values()).count(reached) > 1


def standard_error(accuracies: Sequence[float], images: int) -> float:
    """The standard error of the mean over seeds. These may agree by chance, so it is at least that of so many images.

    Example:
        >>> round(standard_error([90.0, 92.0], images=10_000), 2), round(standard_error([90.0], images=100), 2)
        (1.0, 3.0)
    """
    mean, none = statistics.fmean(accuracies) / 100, 1 / (images + 2)
    share = min(max(mean, none), 1 - none)  # all correct has an error, too
    of_images = 100 * math.sqrt(share * (1 - share) / images)
    of_seeds = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    return max(of_seeds, of_images) / math.sqrt(len(accuracies))


def ranked(measured: Sequence[Measured]) -> list[Measured]:
    """The best first, of equals the better one in INT8; a way of which a seed diverged has no place beside others."""
    trained = [each for each in measured if each.accuracies]
    return sorted(
        [each for each in trained if not each.diverged] or trained,
        key=lambda each: (-each.accuracy, -each.int8_accuracy if each.int8 else 0.0),
    )


def is_noise(best: Measured, other: Measured) -> bool:
    """Whether the difference of two ways is within two standard errors."""
    return best.accuracy - other.accuracy <= _NOISE * math.hypot(best.error, other.error)


def sentences(measured: Sequence[Measured], *, guessing: float, epochs: int = 0, wanted: int = 0) -> list[str]:
    """What the figures say, in words.

    Args:
        measured: the results.
        guessing: the accuracy of always naming the most common class.
        epochs: of each training.
        wanted: how many these would have been in full; where they were not lowered, nothing is said of it.
    """
    order = ranked(measured)
    if not order:
        return ["Every training diverged: give a lower --lr."]
    best, rest = order[0], order[1:]
    said = [f"Best: {best.name}, with an accuracy of {_plus_minus(best.accuracy, best.error)}."]
    if like := as_guessing(best.accuracy, guessing):
        said.append(f"That is {like}: give more --minutes or --epochs before you choose.")
    near = [each.name for each in rest if is_noise(best, each)]
    behind = [f"{each.name} by {best.accuracy - each.accuracy:.2f}" for each in rest if each.name not in near]
    if near:
        said.append(f"Within the noise (two standard errors) of the best: {joined(near)}.")
    if behind:
        said.append(f"Behind it by more than the noise: {joined(behind)}.")
    if epochs < wanted:
        short = f"All were trained for {epochs} of {wanted} epochs"
        said.append(f"{short}: a full training may rank them differently, and want a lower learning rate.")
    return [*said, *_about_int8(order), *_about_rates(order), *_about_seeds(measured)]


def _about_int8(order: Sequence[Measured]) -> list[str]:
    measured, missing = [each for each in order if each.int8], [each.name for each in order if not each.int8]
    if not measured:
        return []
    costs = [f"{each.name} {each.drop:.2f}" for each in measured]
    first = max(measured, key=lambda each: each.int8_accuracy)
    return [
        f"INT8 costs, in points: {joined(costs)}.",
        f"Best in INT8: {first.name}, with {_plus_minus(first.int8_accuracy, first.int8_error)}.",
        *([f"INT8 of {joined(missing)} is missing."] if missing else []),
    ]


def _about_rates(order: Sequence[Measured]) -> list[str]:
    """Sentences on ways whose best rate may lie beyond those that were tried."""
    several, said = [each for each in order if len(each.rates) > 1 and not _is_tied(each.rates, each.lr)], []
    for edge, beyond, of in (("lowest", "lower", min), ("highest", "higher", max)):
        at = [f"{each.name} ({each.lr:g})" for each in several if each.lr == of(each.rates)]
        if at:
            said.append(f"Best at the {edge} learning rate tried, and perhaps better at a {beyond} one: {joined(at)}.")
    return said


def _about_seeds(measured: Sequence[Measured]) -> list[str]:
    said = [
        f"{each.name} diverged with {'every seed' if not each.accuracies else f'{each.diverged} of the seeds'}."
        for each in measured
        if each.diverged
    ]
    images = measured[0].val_images
    if any(len(each.accuracies) == 1 for each in measured):
        said.append(
            f"± of a single seed is the error of {counted(images, 'image')}: how far seeds differ is not known."
        )
    if images < _FEW_IMAGES:
        said.append(f"With {counted(images, 'validation image')}, one image is {100 / images:.1f} points.")
    return said


def _plus_minus(mean: float, error: float) -> str:
    return f"{mean:.2f} ± {error:.2f}"
