"""Which conventions? Where the paper and its authors' code disagree, each way is trained."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from repopt.csla import Convention, IdentityStart
from repopt.reproduce.jobs import search_job, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import difference, groups, markdown, matching, setting, spread
from repopt.reproduce.tables import Record, Row, Table, training_row
from repopt.reproduce.workshop import Workshop
from repopt.scales import Counting
from repopt.train.launch import Job
from repopt.train.methods import Method
from repopt.train.recipe import search, search_clipped

_KERNELS: tuple[Convention, ...] = get_args(Convention)
_IDENTITIES: tuple[IdentityStart, ...] = get_args(IdentityStart)
_COUNTINGS: tuple[Counting, ...] = get_args(Counting)
_BASELINES: tuple[Method, ...] = ("sgd", "repvgg")
# the three variants of the search, alike in all but what their names say
_RECIPES = {
    "plain": search(),
    "smoothed": dataclasses.replace(search(), label_smoothing=0.1),
    "clipped": search_clipped(),
}
_SIZE = "b0"


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for kernel in _KERNELS:
            for method in _BASELINES:
                yield _row(scope, seed, method=method, init=kernel)
            for counting in _COUNTINGS:
                for identity in _IDENTITIES:
                    yield _row(scope, seed, method="repopt", init=kernel, starts=identity, counting=counting)
        for variant in ("smoothed", "clipped"):
            yield _row(
                scope,
                seed,
                method="repopt",
                init=scope.kernel,
                starts=scope.identity,
                counting="authors",
                search=variant,
            )


def _row(
    scope: Scope,
    seed: int,
    *,
    method: Method,
    init: Convention,
    starts: IdentityStart | None = None,
    counting: Counting | None = None,
    search: str | None = None,
) -> Row:
    model = scope.model(_SIZE)
    variant = "plain" if method == "repopt" and search is None else search

    def job(workshop: Workshop) -> Job:
        if counting is None or starts is None or variant is None:
            return training_job(scope, model, method, seed, kernel=init)
        recipe = dataclasses.replace(scope.search_recipe(_RECIPES[variant]), start=counting, kernel=init)
        scales = workshop.searched(search_job(scope, model, recipe))
        return training_job(scope, model, method, seed, scales, kernel=init, identity=starts)

    key = {
        "method": method,
        "model": model,
        "init": init,
        "starts": starts,
        "counting": counting,
        "search": variant,
        "seed": seed,
    }
    return training_row(key, job, minutes=0.3)


def _part(rows: Sequence[Record]) -> list[str]:
    best = {method: _best(rows, method) for method in ("sgd", "repvgg", "repopt")}
    lines = [
        "The paper's text and its authors' code differ in how kernels, identities and searched scales start, and in "
        "the recipe "
        "of the search. Each way trained on Imagenette, its scales searched on CIFAR-100 the same way. "
        f"{rows[0]['model']}, {setting(rows)}",
        "",
    ]
    cells = []
    for (method, init, starts, counting, variant), its in groups(
        rows, "method", "init", "starts", "counting", "search"
    ).items():
        gap = difference(its, best[method])
        cells.append(
            (method, init, starts, counting, variant, len(its), spread(its), "" if its is best[method] else gap)
        )
    columns = {"method": "<", "init": "<", "identity": "<", "depth": "<", "search": "<", "seeds": ">", "accuracy": ">"}
    lines += markdown({**columns, "to the method's best": ">"}, cells)
    lines += [
        "",
        "init: `authors` is torch's default, `paper` He's. identity: where the imagined identity starts. depth: how "
        "sqrt(2/l) counts. search: `plain` has neither smoothing nor clipping; `smoothed` label smoothing 0.1; "
        "`clipped` also "
        "10 warm-up epochs and gradients clipped to 5.",
    ]
    return lines


def _best(rows: Sequence[Record], method: str) -> list[Record]:
    """The rows of the convention with the highest mean."""
    found = groups(matching(rows, method=method), "init", "starts", "counting", "search").values()
    return max(found, key=lambda its: sum(float(row["val_accuracy"]) for row in its) / len(its), default=[])


TABLE = Table(
    name="conventions",
    title="Which conventions?",
    keys=("method", "model", "init", "starts", "counting", "search", "seed"),
    rows=_rows,
    part=_part,
)
