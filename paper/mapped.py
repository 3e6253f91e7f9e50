"""Tables that show rows of the map, which `where` holds, beside their own: scales learned on the way, and decay."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paper import evidence
from paper.view import SEEDS, Record, View, Wanted, accuracy, matching, minus, number, read_rows, text

_TEN = "scales ten times as fast"
_LEARNED = {evidence.TENTH: "frozen at 10%", evidence.ONE: f"frozen at 30%, {_TEN}"}
_FROZEN = ("frozen at 10%", "frozen at 30%", "never frozen")
_BESIDE = ("RepOpt, depth", "RepOpt, searched", "RepVGG")
_ORDER = {
    "epochs": ("15", "40", "120"),
    "way": (*_FROZEN, *(f"{frozen}, {_TEN}" for frozen in _FROZEN), *_BESIDE),
}


def _on_map(results: Path, **wanted: Wanted) -> list[Record]:
    """The map's rows for B0 on all data."""
    return matching(read_rows(results / "where.csv"), model="repopt_vgg_b0", share="100%", **wanted)


def in_one_run(results: Path) -> Iterator[Record]:
    """The rows of `one_run`, and the map's that belong with them."""
    yield from read_rows(results / "one_run.csv")
    for row in _on_map(results, epochs=_ORDER["epochs"], way=(*_LEARNED, *_BESIDE)):
        yield {**row, "way": _LEARNED.get(row["way"], row["way"])}


def decayed(results: Path) -> Iterator[Record]:
    """The map's rows, which have the usual decay, and those of `decay`, which have more."""
    for row in _on_map(results, epochs="40", way=evidence.DECAY.order["way"]):
        yield {**row, "weight_decay": "4e-05"}
    yield from read_rows(results / "decay.csv")


IN_ONE_RUN = replace(
    evidence.ONE_RUN,
    order=_ORDER,
    columns=[*evidence.ONE_RUN.columns, minus("RepOpt, searched"), minus("RepVGG")],
)
# each way at its best weight decay
TUNED = View(
    by=("way",),
    best=("weight_decay", "rate"),
    chosen_on=evidence.DECAY.chosen_on,
    best_first=True,
    columns=[
        *(text("way", "trained by"), "weight_decay", "lr", SEEDS, accuracy()),
        number("train_accuracy", "on training images", "{:.1f}"),
        *map(minus, ("RepVGG", "Dirac", "plain SGD")),
    ],
)
