"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

from dataclasses import replace
from typing import Any

from paper.jobs import Training
from paper.tables import Table
from paper.view import SEEDS, accuracy, minus, papers, text
from repopt.train.recipe import ghost

_NAMES = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}
PAPER = {("repvgg", ""): 66.49, ("repopt", "authors"): 66.51}  # by method and scales
# a third of the epochs, as the VGGs have here, at Imagenette's size and a batch that its images fill 36 times
_RECIPE = replace(ghost(), epochs=100, size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=100)


def _training(method: Any, scales: Any = None, init: str = "authors") -> Training:
    how: dict[str, Any] = {"method": method, "scales": scales, "recipe": _RECIPE, "fields": {"kernel": init}}
    return Training(model="repopt_ghostnet_050", key={"method": method, "scales": scales, "init": init}, **how)


TABLE = Table(
    title="Appendix D: GhostNet",
    keys=("method", "scales", "model", "init", "seed"),
    trainings=[
        _training("repvgg"),
        *(_training("repopt", scales) for scales in ("searched", "authors")),
        *(_training("sgd", init=init) for init in ("authors", "paper")),  # torch's, as the branches have, and He's
    ],
    by=("method", "scales"),
    best=("init",),
    order={"method": list(_NAMES), "scales": ("", "searched", "authors")},
    columns=[
        *(text("method", "model, optimizer", _NAMES), "scales", "init", SEEDS, accuracy()),
        minus("RepGhostNet", {"method": "repvgg"}),
        minus("plain SGD", {"method": "sgd"}),
        papers("paper", PAPER, "method", "scales"),
    ],
)
