"""Appendix B's table: searches whose scales start at 1, and by depth at sqrt(2/l)."""

from collections.abc import Iterator
from dataclasses import replace

from paper.jobs import HyperSearch
from paper.scope import Scope
from paper.table6 import searched_rows, searches_view
from paper.tables import Table, TableRow
from paper.workshop import FIGURES
from repopt.train.recipe import search

_BY_DEPTH = "sqrt(2/l)"
PAPER = {"all 1": (47.70, 77.59), _BY_DEPTH: (54.53, 78.47)}


def _rows(scope: Scope) -> Iterator[TableRow]:
    at_one = HyperSearch(recipe=replace(search(), start=1.0))
    return searched_rows(scope, "scales_start", {"all 1": at_one, _BY_DEPTH: HyperSearch()})


TABLE = Table(
    name="tableB",
    title="Appendix B: where searched scales start",
    keys=("scales_start", "model", "seed"),
    rows=_rows,
    figures=("search_accuracy", *FIGURES),
    view=searches_view("scales_start", "scales start at", _BY_DEPTH, PAPER),
)
