"""Scales that are learned in the training, beside those that are not: rows of `where` and `one_run` in one table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paper import evidence
from paper.view import Record, matching, minus, read_rows

_CELL = {"model": "repopt_vgg_b0", "share": "100%"}  # of all rows of `one_run`
_TEN = "scales ten times as fast"
_LEARNED = {evidence.TENTH: "frozen at 10%", evidence.ONE: f"frozen at 30%, {_TEN}"}
_FROZEN = ("frozen at 10%", "frozen at 30%", "never frozen")
_BESIDE = ("RepOpt, depth", "RepOpt, searched", "RepVGG")
_ORDER = {
    "epochs": ("15", "40", "120"),
    "way": (*_FROZEN, *(f"{frozen}, {_TEN}" for frozen in _FROZEN), *_BESIDE),
}


def in_one_run(results: Path) -> Iterator[Record]:
    """The rows of `one_run`, and those of `where` that belong with them."""
    yield from read_rows(results / "one_run.csv")
    mapped = matching(read_rows(results / "where.csv"), **_CELL, epochs=_ORDER["epochs"])
    for row in matching(mapped, way=(*_LEARNED, *_BESIDE)):
        yield {**row, "way": _LEARNED.get(row["way"], row["way"])}


IN_ONE_RUN = replace(
    evidence.ONE_RUN,
    order=_ORDER,
    columns=[*evidence.ONE_RUN.columns, minus("RepOpt, searched"), minus("RepVGG")],
)
