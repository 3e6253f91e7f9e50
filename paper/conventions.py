"""Which conventions? Where the paper and its authors' code disagree, each way is trained."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from paper.jobs import search_job, training_job
from paper.scope import Scope
from paper.summaries import (
    INITS,
    NAMES,
    best,
    difference,
    groups,
    markdown,
    matching,
    mean,
    setting,
    spread,
    told_apart,
)
from paper.tables import Record, Row, Table, training_row
from paper.workshop import Workshop
from repopt.algebra.csla import Convention, IdentityStart
from repopt.plans.scales import Counting
from repopt.train.methods import Method
from repopt.train.recipe import Recipe, search, search_clipped
from repopt.train.training import Job

_KERNELS: tuple[Convention, ...] = get_args(Convention)
_IDENTITIES: tuple[IdentityStart, ...] = get_args(IdentityStart)
_COUNTINGS: tuple[Counting, ...] = get_args(Counting)
_BASELINES: tuple[Method, ...] = ("sgd", "repvgg")
# variants of the search, alike in all but what their names say; `he` is searched with He's kernels, whatever is trained
_RECIPES = {
    "plain": search(),
    "smoothed": dataclasses.replace(search(), label_smoothing=0.1),
    "clipped": search_clipped(),
    "he": search(),
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
        for variant in ("smoothed", "clipped", "he"):
            yield _row(
                scope,
                seed,
                method="repopt",
                init=Recipe.kernel,
                starts=Recipe.identity,
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
        searched = "paper" if variant == "he" else init
        recipe = dataclasses.replace(scope.search_recipe(_RECIPES[variant]), start=counting, kernel=searched)
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
    searched = {} if variant is None else {f"{variant} {init} {counting}": 2.0}
    return training_row(key, job, minutes=0.2, searches=searched)


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [
        "The paper's text and its authors' code differ in how kernels, identities and searched scales start (of the "
        "latter its section 4.1 and its appendix B say different things), and in the recipe of the search. Each way "
        "trained on Imagenette, with scales from one search on CIFAR-100 the same way, made for this table. "
        f"{rows[0]['model']}, {setting(rows)}",
        "",
    ]
    cells = []
    for method in ("sgd", "repvgg", "repopt"):
        ways = groups(matching(rows, method=method), "init", "starts", "counting", "search")
        first = best(ways.values())
        for (init, *way), its in sorted(ways.items(), key=lambda way: -mean(way[1])):
            gap = "" if its == first else difference(its, first)
            cells.append((NAMES[method], INITS[init], *way, len(its), spread(its), gap))
    columns = {"method": "<", "init": "<", "identity": "<", "depth": "<", "search": "<", "seeds": ">", "accuracy": ">"}
    lines += markdown({**columns, "to the method's best": ">"}, cells)
    return [
        *lines,
        "",
        "init: how kernels start. identity: where the imagined identity starts, at its searched scale or at 1. depth: "
        "how sqrt(2/l) counts, as the authors' code or as the paper's section 4.1. search: `plain` has neither "
        "smoothing nor clipping; `smoothed` has label smoothing 0.1; `clipped` has that, 10 warm-up epochs, and "
        "gradients clipped to 5; `he` is plain, with He's init in the search alone.",
        "",
        f"The library's defaults: {INITS[Recipe.kernel]} init, identity `{Recipe.identity}`, depth `{Recipe.start}`, "
        "a plain search; plain SGD is compared with the init that is best for it. With He's init a RepOptimizer's "
        "scales are searched from it too; searched so and trained from torch's, they are `he`.",
        *_told(rows),
    ]


def _told(rows: Sequence[Record]) -> list[str]:
    """The ways of a RepOptimizer beside the default one."""
    ways = groups(matching(rows, method="repopt"), "init", "starts", "counting", "search")
    default = ways.pop((Recipe.kernel, Recipe.identity, str(Recipe.start), "plain"), [])
    named = {f"{INITS[init]} {' '.join(way)}": its for (init, *way), its in ways.items()}
    told = told_apart(named, default, "the default")
    return ["", f"RepOpt, by init, identity, depth and search. {told}"] if told else []


def _verdict(rows: Sequence[Record]) -> str | None:
    found = {
        method: (
            matching(rows, method=method, init="authors", **own),
            matching(rows, method=method, init="paper", **own),
        )
        for method, own in (
            ("sgd", {}),
            ("repvgg", {}),
            ("repopt", {"starts": Recipe.identity, "counting": "authors", "search": "plain"}),
        )
    }
    gaps = {method: difference(he, torchs) for method, (torchs, he) in found.items()}
    told = [f"{NAMES[method]} {gap}" for method, gap in gaps.items() if gap]
    lr = next((row["lr"] for row in rows if row["lr"]), "")
    return (
        f"He's init against torch's, {rows[0]['model']}, lr {lr}: {', '.join(told)} points." + _with_hes(rows)
        if told
        else None
    )


def _with_hes(rows: Sequence[Record]) -> str:
    """What is left of a RepOptimizer's lead with the init that the paper's text has."""
    he, plain = matching(rows, method="repopt", init="paper"), matching(rows, method="sgd", init="paper")
    gap = difference(best(groups(he, "starts", "counting", "search").values()), plain)
    return f" With He's init, which the paper's text has, RepOpt at its best to plain SGD: {gap}." if gap else ""


TABLE = Table(
    name="conventions",
    title="Which conventions?",
    keys=("method", "model", "init", "starts", "counting", "search", "seed"),
    rows=_rows,
    part=_part,
    verdict=_verdict,
)
