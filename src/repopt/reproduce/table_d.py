"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

import dataclasses
from collections.abc import Iterator, Sequence

from repopt.reproduce.jobs import own_scales, search_left, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import difference, markdown, matching, setting, spread
from repopt.reproduce.tables import Record, Row, Table, training_row
from repopt.reproduce.workshop import Workshop
from repopt.train.launch import Job
from repopt.train.methods import Method
from repopt.train.recipe import Recipe, ghost

_MODEL = "repopt_ghostnet_050"
_METHODS: dict[Method, str] = {"repvgg": "66.49", "repopt": "66.51", "sgd": ""}
_NAMES = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for method in _METHODS:
            yield _row(scope, method, seed)


def _row(scope: Scope, method: Method, seed: int) -> Row:
    def job(workshop: Workshop) -> Job:
        scales = own_scales(scope, workshop, _MODEL) if method == "repopt" else None
        # as on ImageNet, at Imagenette's size and a batch that its 9,469 images fill 36 times
        recipe = dataclasses.replace(ghost(), size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=300)
        recipe = dataclasses.replace(recipe, kernel="paper" if method == "sgd" else Recipe.kernel)
        made = training_job(scope, _MODEL, method, seed, scales)
        return dataclasses.replace(made, recipe=scope.adapt(recipe, seed))

    searched = search_left(_MODEL, 5.0) if method == "repopt" else {}
    return training_row({"method": method, "model": _MODEL, "seed": seed}, job, minutes=1.5, searches=searched)


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [f"0.5x. The paper: ImageNet. Ours: Imagenette, {setting(rows)} Plain SGD has He's init.", ""]
    real = matching(rows, method="repvgg")
    cells = [
        (
            _NAMES[method],
            len(its),
            spread(its),
            "" if its == real else difference(its, real),
            paper,
        )
        for method, paper in _METHODS.items()
        if (its := matching(rows, method=method))
    ]
    return [
        *lines,
        *markdown({"model, optimizer": "<", "seeds": ">", "accuracy": ">", "to RepGhostNet": ">", "paper": ">"}, cells),
    ]


TABLE = Table(
    name="tableD",
    title="Appendix D: GhostNet",
    keys=("method", "model", "seed"),
    rows=_rows,
    part=_part,
)
