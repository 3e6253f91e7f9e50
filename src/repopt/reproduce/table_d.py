"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from repopt.csla import Convention
from repopt.reproduce.jobs import own_scales, search_left, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import INITS, best, difference, groups, markdown, matching, setting, spread
from repopt.reproduce.tables import Record, Row, Table, training_row
from repopt.reproduce.workshop import Workshop
from repopt.train.launch import Job
from repopt.train.methods import Method
from repopt.train.recipe import ghost

_MODEL = "repopt_ghostnet_050"
_METHODS: dict[Method, str] = {"repvgg": "66.49", "repopt": "66.51", "sgd": ""}
_INITS: tuple[Convention, ...] = get_args(Convention)  # torch's, which the branches have, and He's
_NAMES = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for method in _METHODS:
            for init in _INITS if method == "sgd" else _INITS[:1]:
                yield _row(scope, method, init, seed)


def _row(scope: Scope, method: Method, init: Convention, seed: int) -> Row:
    def job(workshop: Workshop) -> Job:
        scales = own_scales(scope, workshop, _MODEL) if method == "repopt" else None
        # as on ImageNet, at Imagenette's size and a batch that its 9,469 images fill 36 times
        recipe = dataclasses.replace(ghost(), size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=300)
        recipe = dataclasses.replace(recipe, kernel=init)
        made = training_job(scope, _MODEL, method, seed, scales)
        return dataclasses.replace(made, recipe=scope.adapt(recipe, seed))

    searched = search_left(_MODEL, 5.0) if method == "repopt" else {}
    key = {"method": method, "model": _MODEL, "init": init, "seed": seed}
    return training_row(key, job, minutes=1.5, searches=searched)


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [f"0.5x. The paper: ImageNet. Ours: Imagenette, {setting(rows)} Plain SGD has its better init.", ""]
    real = matching(rows, method="repvgg")
    cells = [
        (
            _NAMES[method],
            INITS[its[0]["init"]],
            len(its),
            spread(its),
            "" if its == real else difference(its, real),
            paper,
        )
        for method, paper in _METHODS.items()
        if (its := best(groups(matching(rows, method=method), "init").values()))
    ]
    columns = {"model, optimizer": "<", "init": "<", "seeds": ">", "accuracy": ">", "to RepGhostNet": ">"}
    return [*lines, *markdown({**columns, "paper": ">"}, cells)]


TABLE = Table(
    name="tableD",
    title="Appendix D: GhostNet",
    keys=("method", "model", "init", "seed"),
    rows=_rows,
    part=_part,
)
