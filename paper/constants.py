"""Is the search any good? Our scales beside the authors', all ones, the search's start and channel means."""

from dataclasses import replace
from itertools import product
from typing import Any

from paper.jobs import AGAIN, SEARCHED_AGAIN, HyperSearch, Training
from paper.tables import Table
from paper.view import SEEDS, View, accuracy, minus
from repopt.train.recipe import search, search_clipped

_CONSTANTS: dict[str, dict[str, Any]] = {
    "searched": {"scales": "searched"},
    AGAIN: {"scales": SEARCHED_AGAIN},
    **{source: {"scales": source} for source in ("authors", "ones", "depth", "mean")},
    "searched, clipped": {"scales": HyperSearch(recipe=search_clipped())},
    "searched, He": {"scales": HyperSearch(recipe=replace(search(), kernel="paper"))},
    "RepVGG": {"method": "repvgg"},
}

TABLE = Table(
    title="Is the search any good?",
    keys=("model", "constants", "seed"),
    trainings=[
        Training(model=size, key={"constants": name}, **fields)
        for size, (name, fields) in product(("b1", "a0"), _CONSTANTS.items())
        if (size, name) != ("a0", "authors")  # they released none
    ],
    view=View(
        by=("model", "constants"),
        order={"constants": list(_CONSTANTS)},
        columns=["model", "constants", SEEDS, accuracy(), minus("searched"), minus(AGAIN)],
    ),
)
