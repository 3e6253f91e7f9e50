"""Scales that are learned in the training, beside those that are not: rows of `one_run` and of the map."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paper import evidence
from paper.view import Record, matching, minus, read_rows

_TENTH = "frozen at 10%"  # which is the map's one run
_BESIDE = ("RepOpt, depth", "RepOpt, searched", "RepVGG")
_EPOCHS = evidence.ONE_RUN.order["epochs"]


def rows(results: Path) -> Iterator[Record]:
    """Of B0 on all data."""
    yield from read_rows(results / "one_run.csv")
    mapped = matching(read_rows(results / "where.csv"), model="repopt_vgg_b0", share="100%", epochs=_EPOCHS)
    yield from ({**row, "way": _TENTH} for row in matching(mapped, way="RepOpt, one run"))
    yield from matching(mapped, way=_BESIDE)


VIEW = replace(
    evidence.ONE_RUN,
    order={"epochs": _EPOCHS, "way": (_TENTH, *evidence.ONE_RUN.order["way"], *_BESIDE)},
    columns=[*evidence.ONE_RUN.columns, minus("RepOpt, searched"), minus("RepVGG")],
)
