"""Which conventions? Where the paper and its authors' code disagree, each choice is trained."""

from dataclasses import replace
from itertools import product
from typing import get_args

from paper.jobs import HyperSearch, Training
from paper.tables import Table
from paper.view import SEEDS, View, accuracy, minus, text
from repopt.algebra.csla import Convention, IdentityStart
from repopt.plans.scales import Counting
from repopt.train.methods import Method
from repopt.train.recipe import Recipe, search, search_clipped

_BASELINES: tuple[Method, ...] = ("sgd", "repvgg")
_INITS: tuple[Convention, ...] = get_args(Convention)
# searches that differ in what their names say; `he` has He's kernels in the search, whatever is trained
_SEARCHES = {
    "plain": search(),
    "smoothed": replace(search(), label_smoothing=0.1),
    "clipped": search_clipped(),
    "he": search(),
}
_DEFAULT = {"init": Recipe.kernel, "starts": Recipe.identity, "counting": str(Recipe.start), "search": "plain"}


def _repopt(**chosen: str) -> Training:
    key = {"method": "repopt", **_DEFAULT, **chosen}
    kernel = "paper" if key["search"] == "he" else key["init"]
    recipe = replace(_SEARCHES[key["search"]], start=key["counting"], kernel=kernel)  # type: ignore[arg-type]
    fields = {"kernel": key["init"], "identity": key["starts"]}
    return Training(model="b0", key=key, scales=HyperSearch(recipe=recipe), fields=fields)


TABLE = Table(
    title="Which conventions?",
    keys=("method", "model", *_DEFAULT, "seed"),
    trainings=[
        *(
            Training(model="b0", key={"method": method, "init": init}, method=method, fields={"kernel": init})
            for init, method in product(_INITS, _BASELINES)
        ),
        *(
            _repopt(init=init, starts=starts, counting=counting)
            for init, counting, starts in product(_INITS, get_args(Counting), get_args(IdentityStart))
        ),
        *(_repopt(search=other) for other in ("smoothed", "clipped", "he")),
    ],
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
