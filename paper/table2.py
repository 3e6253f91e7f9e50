"""Table 2: RepOpt against RepVGG, at equal batches and at the largest that fit into the memory of the paper's GPU."""

from dataclasses import replace
from itertools import product
from typing import Any

import torch

from paper.jobs import Lines, Scope, Training
from paper.tables import Table
from paper.view import SEEDS, Column, Line, matching, number, papers, spread
from paper.workshop import FIGURES, Workshop
from repopt.bench.train_cost import measure_training
from repopt.device import environment
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_METHODS: dict[Method, dict[str, Any]] = {"repvgg": {"method": "repvgg"}, "repopt": {"scales": "searched"}}
_EQUAL = 32  # on one GPU, as the paper counts
_AT = {"equal": f"batch {_EQUAL}", "largest": "largest batch"}
# our largest batch: the largest multiple of 8 that trains within 11 GB at 224 pixels, by the slope of the memory from
# 32 to 96 images; then the paper's accuracy at equal batches and at the largest, that batch on one GPU, samples/s at
# both, millions of parameters
_MODELS: dict[tuple[str, Method], tuple[int, str, str, int, int, int, float]] = {
    ("b1", "repvgg"): (192, "78.41 ± 0.01", "78.65 ± 0.03", 198, 213, 243, 57.4),
    ("b1", "repopt"): (384, "78.47 ± 0.03", "78.62 ± 0.03", 260, 380, 445, 51.8),
    ("b2", "repvgg"): (160, "79.53 ± 0.08", "79.78 ± 0.14", 153, 142, 163, 89.0),
    ("b2", "repopt"): (328, "79.36 ± 0.09", "79.66 ± 0.12", 200, 246, 264, 80.3),
    ("l1", "repvgg"): (104, "79.39 ± 0.07", "79.84 ± 0.02", 106, 124, 136, 84.3),
    ("l1", "repopt"): (232, "79.46 ± 0.02", "79.83 ± 0.03", 140, 221, 252, 76.0),
    ("l2", "repvgg"): (80, "80.52 ± 0.05", "80.56 ± 0.09", 77, 82, 86, 131.0),
    ("l2", "repopt"): (176, "80.29 ± 0.02", "80.53 ± 0.09", 103, 138, 149, 118.1),
}
LARGEST = {(f"repopt_vgg_{size}", method): figures[0] for (size, method), figures in _MODELS.items()}
_PAPER = {(f"repopt_vgg_{size}", method): figures[1:] for (size, method), figures in _MODELS.items()}


def _row(what: str, size: str, method: Method, batches: str) -> Training:
    key = {"what": what, "method": method, "batches": batches}
    if what == "speed":
        return Training(model=size, key={**key, "seed": 0}, method=method, data="", measure=_speed)
    fields = {"batch_size": _MODELS[size, method][0]} if batches == "largest" else {}
    return Training(model=size, key=key, fields=fields, one_seed=size != "b1", **_METHODS[method])


def _speed(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    """What training costs at a batch."""
    largest = training.key["batches"] == "largest" and not scope.quick
    batch = _MODELS[training.model, training.method][0] if largest else _EQUAL
    recipe, device = replace(scope.adapt(Recipe(flip=False), 0), batch_size=batch), workshop.chosen_device
    size, classes, steps = (32, 10, 2) if scope.quick else (224, 1000, 50)
    at: dict[str, Any] = {"size": size, "classes": classes, "steps": steps, "device": device}
    with workshop.alone():
        torch.compiler.reset()
        (cost,) = measure_training(scope.model(training.model), (training.method,), recipe, **at)
    about = {"batch_size": batch, "size": size, "precision": recipe.precision, "parameters": cost.parameters}
    found = {"images_per_second": cost.images_per_second, "peak_memory_bytes": cost.peak_bytes}
    return [{**about, **found, **environment(device)}]


def _accuracy_at(batches: str) -> Column:
    def cell(line: Line) -> str:
        rows = matching(line.rows, what="accuracy", batches=batches)
        sizes = {row["batch_size"] for row in rows if row["batch_size"]}
        return spread(rows) + "".join(f" (batch {size})" for size in sizes)

    return Column(f"accuracy, {batches} batches", cell)


def _cost_at(batches: str, column: str, heading: str, form: str = "{:,.0f}", per: float = 1) -> Column:
    return number(column, f"{heading}, {_AT[batches]}", form, per, what="speed", batches=batches)


TABLE = Table(
    title="Table 2: RepOpt against RepVGG",
    keys=("what", "model", "method", "batches", "seed"),
    trainings=[
        *(_row("accuracy", size, method, "equal") for size, method in _MODELS),
        *(_row("accuracy", "b1", method, "largest") for method in _METHODS),
        *(_row("speed", size, method, batches) for (size, method), batches in product(_MODELS, _AT)),
    ],
    figures=("images_per_second", "peak_memory_bytes", "note", *FIGURES),
    by=("model", "method"),
    order={"model": [f"repopt_vgg_{size}" for size in ("nano", "b1", "b2", "l1", "l2")], "method": list(_METHODS)},
    columns=[
        *("model", "method", SEEDS),
        *map(_accuracy_at, _AT),
        *(_cost_at(batches, "images_per_second", "images/s") for batches in _AT),
        number("batch_size", "largest batch", what="speed", batches="largest"),
        *(_cost_at(batches, "peak_memory_bytes", "GB", "{:.1f}", 1e9) for batches in _AT),
        number("parameters", "M parameters", "{:.1f}", 1e6, what="speed", batches="equal"),
        papers("paper, accuracy", _PAPER, "model", "method", form="{0[0]}; {0[1]}"),
        papers("paper, samples/s", _PAPER, "model", "method", form="{0[3]}; {0[4]} (batch {0[2]})"),
        papers("paper, M parameters", _PAPER, "model", "method", form="{0[5]:.1f}"),
    ],
)
