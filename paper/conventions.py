"""Which conventions? Where the paper and its authors' code disagree, each choice is trained."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

from paper.jobs import HyperSearch, Training, training_row
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, View, accuracy, minus, text
from repopt.algebra.csla import Convention, IdentityStart
from repopt.plans.scales import Counting
from repopt.train.methods import Method
from repopt.train.recipe import Recipe, search, search_clipped

_BASELINES: tuple[Method, ...] = ("sgd", "repvgg")
# searches that differ in what their names say; `he` has He's kernels in the search, whatever is trained
_RECIPES = {
    "plain": search(),
    "smoothed": replace(search(), label_smoothing=0.1),
    "clipped": search_clipped(),
    "he": search(),
}
_DEFAULT = {"init": Recipe.kernel, "starts": Recipe.identity, "counting": str(Recipe.start), "search": "plain"}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for seed in scope.seeds:
        for init in get_args(Convention):
            for method in _BASELINES:
                yield _row(scope, seed, method, {"init": init})
            for counting, starts in product(get_args(Counting), get_args(IdentityStart)):
                chosen = {"init": init, "starts": starts, "counting": counting, "search": "plain"}
                yield _row(scope, seed, "repopt", chosen)
        for variant in ("smoothed", "clipped", "he"):
            yield _row(scope, seed, "repopt", {**_DEFAULT, "search": variant})


def _row(scope: Scope, seed: int, method: Method, chosen: dict[str, str]) -> TableRow:
    scales, fields = None, {"kernel": chosen["init"]}
    if method == "repopt":
        kernel = "paper" if chosen["search"] == "he" else chosen["init"]
        recipe = replace(_RECIPES[chosen["search"]], start=chosen["counting"], kernel=kernel)  # type: ignore[arg-type]
        scales, fields = HyperSearch(recipe=recipe), {**fields, "identity": chosen["starts"]}
    training = Training(model="b0", method=method, scales=scales, fields=fields)
    empty: dict[str, str | None] = dict.fromkeys(_DEFAULT)
    return training_row(
        scope, {"method": method, "model": scope.model("b0"), **empty, **chosen}, training, seed, minutes=0.2
    )


TABLE = Table(
    name="conventions",
    title="Which conventions?",
    keys=("method", "model", *_DEFAULT, "seed"),
    rows=_rows,
    view=View(
        by=("method", *_DEFAULT),
        order={"method": (*_BASELINES, "repopt")},
        best_first=True,
        columns=[
            *("method", "init", text("starts", "identity"), text("counting", "depth"), "search", SEEDS, accuracy()),
            minus("the default RepOpt", {"method": "repopt", **_DEFAULT}),
        ],
    ),
)
