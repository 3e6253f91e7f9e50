"""Table 6: scales searched with other strides, the model trained unchanged."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from paper.jobs import (
    AGAIN,
    NOT_SEARCHED,
    SEARCHED_AGAIN,
    HyperSearch,
    Training,
    has_identity,
    planned,
    search_job,
    training_job,
    training_row,
)
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, View, accuracy, minus, number, papers, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.plans.planning import Plan
from repopt.plans.scales import Scales

_SIZE = "a0"  # the paper has B1; docs/results.md says why A0
_USUAL = "2 2 2 2 2"
# {strides of the search: the paper's accuracy of the search, and of the target on ImageNet}
PAPER = {_USUAL: (54.53, 78.47), "2 2 1 2 1": (70.66, 77.81), "2 1 2 1 1": (74.37, 77.88)}


def fitting(scales: Scales, plan: Plan) -> tuple[Scales, int]:
    """Scales without the identities that a plan's operators lack, and how many those were.

    A layer that keeps the shape in the search, and changes it in the target, has an identity only in the search.
    """
    kept = {
        operator: {
            branch: scale for branch, scale in found.items() if branch != "identity" or has_identity(plan, operator)
        }
        for operator, found in scales.items()
    }
    return Scales(kept, scales.metadata), sum(map(len, scales.values())) - sum(map(len, kept.values()))


def searched_rows(scope: Scope, column: str, searches: Mapping[str, HyperSearch]) -> Iterator[TableRow]:
    """Trainings with the scales of several searches, of a second usual one, and of none; a column names them."""
    model = scope.model(_SIZE)
    for seed in scope.seeds:
        for name, search in {**searches, AGAIN: SEARCHED_AGAIN}.items():
            key = {column: name, "model": model, "seed": seed}
            measure = partial(_measure, scope, search, seed, count_dropped=column == "strides")
            yield TableRow(key=key, measure=measure, minutes=0.3, searches={str(search): 3.0})
        key = {column: NOT_SEARCHED, "model": model}
        yield training_row(scope, key, Training(model=_SIZE, scales="depth"), seed, minutes=0.3)


def _measure(
    scope: Scope, search: HyperSearch, seed: int, workshop: Workshop, *, count_dropped: bool
) -> list[dict[str, Any]]:
    model = scope.model(_SIZE)
    searching = workshop.run(search_job(scope, model, search))
    fitted, dropped = fitting(Scales.load(searching / "scales.safetensors"), planned(model))
    training = Training(model=_SIZE, scales=search, change=lambda *_: fitted)
    found = figures_of(workshop.run(training_job(scope, workshop, training, seed)))
    found["search_accuracy"] = figures_of(searching)["val_accuracy"]
    return [{**found, "dropped_identities": dropped} if count_dropped else found]


def searches_view(column: str, heading: str, usual: str, paper: Mapping[str, tuple[float, float]]) -> View:
    """Kinds of search: the accuracy of each, and of what was trained with its scales.

    Args:
        column: that tells the kinds apart.
        heading: of that column.
        usual: the kind that others are compared with.
        paper: its two accuracies of each.
    """
    return View(
        by=(column,),
        order={column: [*paper, AGAIN, NOT_SEARCHED]},
        columns=[
            *(text(column, heading), number("search_accuracy", "search accuracy", "{:.2f}"), SEEDS, accuracy()),
            *map(minus, (usual, AGAIN, NOT_SEARCHED)),
            papers("paper, search", {name: search for name, (search, _) in paper.items()}, column, "{:.2f}"),
            papers("paper, ImageNet", {name: trained for name, (_, trained) in paper.items()}, column, "{:.2f}"),
        ],
    )


def _rows(scope: Scope) -> Iterator[TableRow]:
    others = {text: HyperSearch(strides=tuple(map(int, text.split()))) for text in PAPER if text != _USUAL}
    # the default strides are left out, so that the search is the one that other tables ask for
    return searched_rows(scope, "strides", {_USUAL: HyperSearch(), **others})


TABLE = Table(
    name="table6",
    title="Table 6: scales from other strides",
    keys=("strides", "model", "seed"),
    rows=_rows,
    figures=("search_accuracy", "dropped_identities", *FIGURES),
    view=searches_view("strides", "strides of the search", _USUAL, PAPER),
)
