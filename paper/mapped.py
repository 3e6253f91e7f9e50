"""Tables that show rows of others beside their own: of the map, which `where` holds, or of the paper's weight decay."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from paper import evidence
from paper.view import SEEDS, Record, View, Wanted, accuracy, matching, minus, number, read_rows, text

_TEN = "scales ten times as fast"
_LEARNED = {evidence.TENTH: "frozen at 10%", evidence.LEARNED: f"frozen at 30%, {_TEN}"}
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
    """The map's rows, which have the paper's decay, and those of `decay`, which have more."""
    yield from _as_in_the_paper(_on_map(results, epochs="40", way=evidence.DECAY.order["way"]))
    yield from read_rows(results / "decay.csv")


def decayed_on_a_cpu(results: Path) -> Iterator[Record]:
    """The rows of `table4_cpu`, which have the paper's decay, and those of `decay_cpu`, which have more."""
    more = read_rows(results / "decay_cpu.csv")
    yield from _as_in_the_paper(
        matching(read_rows(results / "table4_cpu.csv"), way=sorted({row["way"] for row in more}))
    )
    yield from more


def elsewhere(results: Path) -> Iterator[Record]:
    """The rows of `best`, which have the paper's decay, and those of `best_decay`, which have more."""
    yield from _as_in_the_paper(read_rows(results / "best.csv"))
    yield from read_rows(results / "best_decay.csv")


def _as_in_the_paper(rows: Iterable[Record]) -> Iterator[Record]:
    """The rows of a table that does not vary the decay, with the paper's."""
    return ({**row, "weight_decay": "4e-05"} for row in rows)


IN_ONE_RUN = replace(
    evidence.ONE_RUN,
    order=_ORDER,
    columns=[*evidence.ONE_RUN.columns, minus("RepOpt, searched"), minus("RepVGG")],
)
DECAYED_ON_A_CPU = replace(evidence.DECAY_CPU, order={"weight_decay": ("4e-05", "0.001", "0.01")})
_DATA, *_OTHERS = evidence.BEST.columns
ELSEWHERE = replace(
    evidence.BEST,
    by=("data", "weight_decay", "way"),
    columns=[_DATA, text("weight_decay", "weight decay"), *_OTHERS],
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
