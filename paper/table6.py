"""Table 6: scales searched with other strides, the model trained unchanged."""

from collections.abc import Mapping
from typing import Any

from paper.jobs import AGAIN, NOT_SEARCHED, SEARCHED_AGAIN, HyperSearch, Source, Training
from paper.tables import Table
from paper.view import SEEDS, View, accuracy, minus, number, papers, text
from paper.workshop import FIGURES

_SIZE = "a0"  # the paper has B1; docs/results.md says why A0
_USUAL = "2 2 2 2 2"
# {strides of the search: the paper's accuracy of the search, and of the target on ImageNet}
PAPER = {_USUAL: (54.53, 78.47), "2 2 1 2 1": (70.66, 77.81), "2 1 2 1 1": (74.37, 77.88)}


def comparison(
    *,
    key: str,
    heading: str,
    searches: Mapping[str, HyperSearch],
    usual: str,
    paper: Mapping[str, tuple[float, float]],
    **table: Any,
) -> Table:
    """A table of kinds of search: the accuracy of each, and of what is trained with its scales.

    Args:
        key: the column that tells the kinds apart.
        heading: of that column.
        searches: by kind; a second usual one is added, and none.
        usual: the kind that others are compared with.
        paper: its two accuracies of each kind.
        table: title and figures.
    """
    scales: Mapping[str, HyperSearch | Source] = {**searches, AGAIN: SEARCHED_AGAIN, NOT_SEARCHED: "depth"}
    return Table(
        **table,
        keys=(key, "model", "seed"),
        trainings=[Training(model=_SIZE, key={key: kind}, scales=each) for kind, each in scales.items()],
        view=View(
            by=(key,),
            order={key: list(scales)},
            columns=[
                *(text(key, heading), number("search_accuracy", "search accuracy", "{:.2f}"), SEEDS, accuracy()),
                *map(minus, (usual, AGAIN, NOT_SEARCHED)),
                papers("paper, search", paper, key, form="{0[0]:.2f}"),
                papers("paper, ImageNet", paper, key, form="{0[1]:.2f}"),
            ],
        ),
    )


TABLE = comparison(
    title="Table 6: scales from other strides",
    figures=("search_accuracy", "dropped_identities", *FIGURES),
    key="strides",
    heading="strides of the search",
    # the default strides are left out, so that the search is the one that other tables ask for
    searches={
        strides: HyperSearch(strides=None if strides == _USUAL else tuple(map(int, strides.split())))
        for strides in PAPER
    },
    usual=_USUAL,
    paper=PAPER,
)
