"""Is the search any good? Our scales beside the authors', all ones, the search's start and channel means."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from paper.jobs import AGAIN, SEARCHED_AGAIN, HyperSearch, Source, Training, training_row
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, View, accuracy, minus
from repopt.train.recipe import search, search_clipped

_CONSTANTS: dict[str, Source | HyperSearch | None] = {
    "searched": "searched",
    AGAIN: SEARCHED_AGAIN,
    "authors": "authors",
    "ones": "ones",
    "depth": "depth",
    "mean": "mean",
    "searched, clipped": HyperSearch(recipe=search_clipped()),
    "searched, He": HyperSearch(recipe=replace(search(), kernel="paper")),
    "RepVGG": None,
}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for seed, size in product(scope.seeds, ("b1",) if scope.quick else ("b1", "a0")):
        for name, scales in _CONSTANTS.items():
            if scales != "authors" or (size == "b1" and not scope.quick):
                training = Training(model=size, method="repopt" if scales else "repvgg", scales=scales)
                key = {"model": scope.model(size), "constants": name}
                yield training_row(scope, key, training, seed, minutes=0.3)


TABLE = Table(
    name="constants",
    title="Is the search any good?",
    keys=("model", "constants", "seed"),
    rows=_rows,
    view=View(
        by=("model", "constants"),
        order={"constants": list(_CONSTANTS)},
        columns=["model", "constants", SEEDS, accuracy(), minus("searched"), minus(AGAIN)],
    ),
)
