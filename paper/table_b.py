"""Appendix B's table: searches whose scales start at 1, and by depth at sqrt(2/l)."""

from dataclasses import replace

from paper.jobs import HyperSearch
from paper.table6 import comparison
from paper.workshop import FIGURES
from repopt.train.recipe import search

PAPER = {"all 1": (47.70, 77.59), "sqrt(2/l)": (54.53, 78.47)}

TABLE = comparison(
    title="Appendix B: where searched scales start",
    figures=("search_accuracy", *FIGURES),
    key="scales_start",
    heading="scales start at",
    searches={"all 1": HyperSearch(recipe=replace(search(), start=1.0)), "sqrt(2/l)": HyperSearch()},
    usual="sqrt(2/l)",
    paper=PAPER,
)
