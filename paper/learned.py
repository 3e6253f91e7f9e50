"""Scales that are learned in the training, beside those that are not: rows of `where` and `one_run` in one table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paper import evidence
from paper.view import Record, matching, minus, read_rows

_CELL = {"model": "repopt_vgg_b0", "share": "100%"}  # of all rows of `one_run`
_TENTH = "frozen at 10%"  # as `one_run` would call the map's one run
_BESIDE = ("RepOpt, depth", "RepOpt, searched", "RepVGG")
_EPOCHS = evidence.ONE_RUN.order["epochs"]


def on_the_map(results: Path) -> Iterator[Record]:
    """The rows of `where`, and those of `one_run` that are learned by default."""
    yield from read_rows(results / "where.csv")
    for row in matching(read_rows(results / "one_run.csv"), way=evidence.ONE_RUN_FASTER):
        yield {**row, **_CELL, "way": evidence.FASTER}


def in_one_run(results: Path) -> Iterator[Record]:
    """The rows of `one_run`, and those of `where` that they are compared with."""
    yield from read_rows(results / "one_run.csv")
    mapped = matching(read_rows(results / "where.csv"), **_CELL, epochs=_EPOCHS)
    yield from ({**row, "way": _TENTH} for row in matching(mapped, way="RepOpt, one run"))
    yield from matching(mapped, way=_BESIDE)


IN_ONE_RUN = replace(
    evidence.ONE_RUN,
    order={"epochs": _EPOCHS, "way": (_TENTH, *evidence.ONE_RUN.order["way"], *_BESIDE)},
    columns=[*evidence.ONE_RUN.columns, minus("RepOpt, searched"), minus("RepVGG")],
)
