"""A comparison for a reader: the table, how it was measured, and the command that trains the best way in full."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from repopt.compare.study import Study
from repopt.compare.verdict import Measured, ranked
from repopt.compare.ways import Way
from repopt.plans.wording import counted
from repopt.train.job import LEARNING, flags_without
from repopt.train.methods import LEARN, plans_branches

_ABSENT = "–"


def table_of(measured: Sequence[Measured]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; a column that nothing was measured for is left out."""
    columns: dict[str, list[str]] = {
        "method": [each.name for each in measured],
        "lr": [f"{each.lr:g}" for each in measured],
        "accuracy": [_mean(each.accuracies, each, "accuracy", "error") for each in measured],
        "INT8": [_mean(each.int8, each, "int8_accuracy", "int8_error") for each in measured],
        "train/s": [_count(each.images_per_second) for each in measured],
        "memory": [_ABSENT if each.peak_bytes is None else f"{each.peak_bytes / 2**20:,.0f} MiB" for each in measured],
        "infer/s": [_count(each.inference) for each in measured],
    }
    kept = {name: cells for name, cells in columns.items() if set(cells) != {_ABSENT}}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def notes_of(study: Study, measured: Sequence[Measured], no_int8: str = "") -> list[str]:
    """How the figures came about, and why there are none of INT8 where there are none."""
    images, seeds, epochs = measured[0].val_images, counted(study.seeds, "seed"), counted(study.recipe.epochs, "epoch")
    notes = [
        f"Accuracy in percent on {images:,} validation images, the mean over {seeds} ± its standard error; "
        f"{epochs} each, by the same recipe. train/s and infer/s are images per second."
    ]
    if any(way.kernel for way in study.ways):
        notes.append("Plain SGD starts from He's init, which suits it better than torch's.")
    if len(study.rates) > 1:
        tried = "; ".join(f"{each.name}: {_rates(each)}" for each in measured)
        beyond = ", then at lower or higher ones while these were better" if study.further else ""
        notes.append(
            f"Each way was trained at the learning rates {', '.join(f'{rate:g}' for rate in study.rates)} with the "
            f"first seed{beyond}, and goes on with the best one. That seed counts in its mean, which favours each way "
            "alike. "
            f"By rate: {tried}."
        )
    if no_int8:
        notes.append(f"INT8 was not measured: {no_int8}. A new comparison, in another folder, can measure it.")
    if not any(each.peak_bytes for each in measured):
        notes.append("Memory is measured on CUDA alone.")
    return notes


def command_of(
    study: Study, recipe_name: str, flags: Sequence[str], measured: Sequence[Measured], branches: str | None = None
) -> str:
    """What trains the best way in full; nothing if all diverged.

    Args:
        study: as it was asked for, before it was shortened.
        recipe_name: that the user gave, or auto.
        flags: others that the user gave and `repopt train` takes, too.
        measured: the results.
        branches: that the user gave, for a method that plans some.
    """
    order = ranked(measured)
    if not order:
        return ""
    way = next(each for each in study.ways if each.name == order[0].name)
    words = ["repopt", "train", "--model", study.model, "--data", study.data, *_of_way(way), "--lr", f"{order[0].lr:g}"]
    words += [] if recipe_name == "auto" else ["--recipe", recipe_name]
    given = [] if way.scales == LEARN else [name for name in LEARNING if getattr(study.recipe, name) is not None]
    words += flags_without(given)
    words += ["--branches", branches] if branches is not None and plans_branches(study.model, way.method) else []
    return shlex.join([*words, *flags, "--out", f"runs/{way.method}"])


def _of_way(way: Way) -> list[str]:
    given = {"--method": way.method, "--scales": way.scales, "--kernel": way.kernel}
    return [word for flag, value in given.items() if value is not None for word in (flag, value)]


def as_record(
    study: Study, minutes: dict[str, float], measured: Sequence[Measured], said: list[str], command: str
) -> dict[str, Any]:
    """The content of compare.json."""
    order = ranked(measured)
    rows = [
        {
            **asdict(each),
            "accuracy": each.accuracy if each.accuracies else None,
            "standard_error": each.error if each.accuracies else None,
            "int8_accuracy": each.int8_accuracy if each.int8 else None,
            "int8_standard_error": each.int8_error if each.int8 else None,
        }
        for each in measured
    ]
    return {
        "best": order[0].name if order else None,
        "sentences": said,
        "command": command,
        "minutes": minutes,
        "methods": rows,
        "study": asdict(study),
    }


def _mean(values: Sequence[float], of: Measured, mean: str, error: str) -> str:
    return f"{getattr(of, mean):.2f} ± {getattr(of, error):.2f}" if values else _ABSENT


def _rates(each: Measured) -> str:
    accuracies = {rate: "diverged" if found is None else f"{found:.2f}" for rate, found in each.rates.items()}
    return ", ".join(f"{accuracy} at {rate:g}" for rate, accuracy in accuracies.items())


def _count(number: float | None) -> str:
    return _ABSENT if number is None else f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
