"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

from collections.abc import Iterator
from dataclasses import replace

from paper.jobs import Source, Training, training_row
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, Column, View, accuracy, minus, text
from repopt.train.methods import Method
from repopt.train.recipe import ghost

_MODEL = "repopt_ghostnet_050"
_NAMES = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}
PAPER = {("repvgg", ""): 66.49, ("repopt", "authors"): 66.51}  # by method and scales
# method, scales, init: torch's, which the branches have, and He's for plain SGD
_TRAINED: tuple[tuple[Method, Source | None, str], ...] = (
    ("repvgg", None, "authors"),
    ("repopt", "searched", "authors"),
    ("repopt", "authors", "authors"),
    ("sgd", None, "authors"),
    ("sgd", None, "paper"),
)


def _rows(scope: Scope) -> Iterator[TableRow]:
    # a third of the epochs, as the VGGs have here, at Imagenette's size and a batch that its images fill 36 times
    recipe = replace(ghost(), epochs=100, size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=100)
    for seed in scope.seeds:
        for method, scales, init in _TRAINED:
            if scales != "authors" or not scope.quick:
                fields = {"kernel": init}
                training = Training(model=_MODEL, method=method, scales=scales, recipe=recipe, fields=fields)
                key = {"method": method, "scales": scales, "model": _MODEL, "init": init}
                yield training_row(scope, key, training, seed, minutes=0.6)


TABLE = Table(
    name="tableD",
    title="Appendix D: GhostNet",
    keys=("method", "scales", "model", "init", "seed"),
    rows=_rows,
    view=View(
        by=("method", "scales"),
        best=("init",),
        order={"method": list(_NAMES), "scales": ("", "searched", "authors")},
        columns=[
            *(text("method", "model, optimizer", _NAMES), "scales", "init", SEEDS, accuracy()),
            minus("RepGhostNet", {"method": "repvgg"}),
            minus("plain SGD", {"method": "sgd"}),
            Column("paper", lambda line: PAPER.get((line["method"], line["scales"]))),
        ],
    ),
)
