"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

import dataclasses
from collections.abc import Iterator, Sequence

from repopt.reproduce.jobs import own_scales, search_job, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import difference, groups, markdown, matching, setting, spread
from repopt.reproduce.tables import Record, Row, Table, training_row
from repopt.reproduce.workshop import Workshop
from repopt.scales import shipped
from repopt.train.launch import Job
from repopt.train.methods import Method
from repopt.train.recipe import ghost, ghost_search

_MODEL = "repopt_ghostnet_050"
_METHODS: dict[Method, str] = {"repvgg": "66.49", "repopt": "66.51", "sgd": ""}
_NAMES = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for method in _METHODS:
            yield _row(scope, method, seed)


def _row(scope: Scope, method: Method, seed: int) -> Row:
    def job(workshop: Workshop) -> Job:
        scales = None
        if method == "repopt" and _MODEL in shipped() and not scope.quick:
            scales = own_scales(scope, workshop, _MODEL)
        elif method == "repopt":
            scales = workshop.searched(search_job(scope, _MODEL, scope.search_recipe(ghost_search())))
        # as on ImageNet, at Imagenette's size and as many steps as 300 epochs of its 9,469 images have
        recipe = dataclasses.replace(ghost(), size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=300)
        made = training_job(scope, _MODEL, method, seed, scales)
        return dataclasses.replace(made, recipe=scope.adapt(recipe, seed))

    return training_row({"method": method, "model": _MODEL, "seed": seed}, job, minutes=1.5)


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [f"0.5x. The paper: ImageNet. Ours: Imagenette, {setting(rows)}", ""]
    real = matching(rows, method="repvgg")
    cells = [
        (
            _NAMES[method],
            len(its),
            spread(its),
            "" if its == real else difference(its, real),
            _METHODS[method],  # type: ignore[index]
        )
        for (method,), its in groups(rows, "method").items()
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
