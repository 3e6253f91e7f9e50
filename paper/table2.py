"""Table 2: RepOpt against RepVGG, at equal batches and at the largest that each fits into a given memory."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from paper.jobs import Training, training_job
from paper.rows import matching, spread
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, Column, Line, View, number
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.train_cost import measure_training
from repopt.device import environment, hardware
from repopt.files import replacing
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_METHODS: tuple[Method, ...] = ("repvgg", "repopt")
_MEMORY = 11e9  # the paper's 2080Ti
# on one GPU, as the paper counts; the second batch is only for the slope of the memory
_SPEED_BATCH, _SLOPE_BATCH = 32, 96
_AT = {"equal": f"batch {_SPEED_BATCH}", "largest": "largest batch"}
_STEP = 8  # a largest batch is a multiple of it, as tensor cores like
# {model: (minutes a training, minutes for all speeds)} on one H200
_MODELS = {"b1": (0.4, 2.0), "b2": (0.6, 2.0), "l1": (0.7, 3.0), "l2": (1.0, 3.0)}
# accuracy at equal batches and at the largest, that batch on one GPU, samples/s at both, millions of parameters
_PAPER: dict[tuple[str, str], tuple[str, str, int, int, int, float]] = {
    ("b1", "repvgg"): ("78.41 ± 0.01", "78.65 ± 0.03", 198, 213, 243, 57.4),
    ("b1", "repopt"): ("78.47 ± 0.03", "78.62 ± 0.03", 260, 380, 445, 51.8),
    ("b2", "repvgg"): ("79.53 ± 0.08", "79.78 ± 0.14", 153, 142, 163, 89.0),
    ("b2", "repopt"): ("79.36 ± 0.09", "79.66 ± 0.12", 200, 246, 264, 80.3),
    ("l1", "repvgg"): ("79.39 ± 0.07", "79.84 ± 0.02", 106, 124, 136, 84.3),
    ("l1", "repopt"): ("79.46 ± 0.02", "79.83 ± 0.03", 140, 221, 252, 76.0),
    ("l2", "repvgg"): ("80.52 ± 0.05", "80.56 ± 0.09", 77, 82, 86, 131.0),
    ("l2", "repopt"): ("80.29 ± 0.02", "80.53 ± 0.09", 103, 138, 149, 118.1),
}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for size, (training, speeds) in _MODELS.items() if not scope.quick else [("b1", (0.0, 0.0))]:
        for seed, method in product(scope.seeds if size == "b1" else scope.seeds[:1], _METHODS):
            yield _accuracy_row(scope, size, method, seed, "equal", training)
        yield _speed_row(scope, scope.model(size), speeds)
        for seed, method in product(scope.seeds if size == "b1" else (), _METHODS):
            yield _accuracy_row(scope, size, method, seed, "largest", training)


def _accuracy_row(scope: Scope, size: str, method: Method, seed: int, batches: str, minutes: float) -> TableRow:
    model, training = scope.model(size), Training(model=size, method=method)
    training = replace(training, scales="searched") if method == "repopt" else training

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        batch = {} if batches == "equal" else {"batch_size": largest_batches(scope, workshop, model)[method]}
        return [figures_of(workshop.run(training_job(scope, workshop, replace(training, fields=batch), seed)))]

    key = {"what": "accuracy", "model": model, "method": method, "batches": batches, "seed": seed}
    return TableRow(key=key, measure=measure, minutes=minutes)


def _speed_row(scope: Scope, model: str, minutes: float) -> TableRow:
    key = {"what": "speed", "model": model, "seed": 0}
    return TableRow(key=key, measure=lambda workshop: speeds(scope, workshop, model), minutes=minutes)


def largest_batches(scope: Scope, workshop: Workshop, model: str) -> dict[str, int]:
    """The largest batch of each method that trains at 224 pixels within the memory."""
    found = speeds(scope, workshop, model)
    return {line["method"]: line["batch_size"] for line in found if line["batches"] == "largest"}


def speeds(scope: Scope, workshop: Workshop, model: str) -> list[dict[str, Any]]:
    """What training costs by each method at equal batches and at its largest.

    Memory grows linearly with the batch, so two batches give the largest one. A device that does not count its memory
    gets twice the equal batch of training.
    """
    lines = []
    for method in _METHODS:
        small, largest = _cost(scope, workshop, model, method, _SPEED_BATCH), 2 * scope.target_recipe(0).batch_size
        if small["peak_memory_bytes"] is not None:
            large = _cost(scope, workshop, model, method, _SLOPE_BATCH, timed=False)
            slope = (large["peak_memory_bytes"] - small["peak_memory_bytes"]) / (_SLOPE_BATCH - _SPEED_BATCH)
            if slope <= 0:
                raise RuntimeError(f"{model} takes no more memory for {_SLOPE_BATCH} images than for {_SPEED_BATCH}")
            largest = (_SPEED_BATCH + int((_MEMORY - small["peak_memory_bytes"]) / slope)) // _STEP * _STEP
        costs = {"equal": small, "largest": _cost(scope, workshop, model, method, largest)}
        lines += [{"method": method, "batches": batches, **cost} for batches, cost in costs.items()]
    return lines


def _cost(
    scope: Scope, workshop: Workshop, model: str, method: Method, batch: int, *, timed: bool = True
) -> dict[str, Any]:
    """What training costs at one batch, measured once in a workshop; what is not timed shares the device."""
    recipe = replace(scope.adapt(Recipe(flip=False), 0), batch_size=batch)
    size, classes, steps = (32, 10, 2) if scope.quick else (224, 1000, 50)
    steps = steps if timed else 1
    device = workshop.chosen_device
    about = f"{hardware(device)} {size} {classes} {steps} {recipe}"
    name = f"speed-{model}-{method}-{batch}-{hashlib.sha256(about.encode()).hexdigest()[:8]}"
    kept = workshop.folder / f"{name}.json"
    with workshop.claim(name, wait=True):
        if not kept.exists():
            torch.compiler.reset()
            with workshop.alone() if timed else workshop.sharing():
                (cost,) = measure_training(
                    model, (method,), recipe, size=size, classes=classes, steps=steps, device=device
                )
            columns = {
                "images_per_second": cost.images_per_second if timed else None,
                "peak_memory_bytes": cost.peak_bytes,
                "parameters": cost.parameters,
                "batch_size": batch,
                "precision": recipe.precision,
                **environment(device),
            }
            with replacing(kept) as unfinished:
                unfinished.write_text(json.dumps(columns))
        found: dict[str, Any] = {"size": size, **json.loads(kept.read_text())}
    return found


def _accuracy_at(batches: str) -> Column:
    def cell(line: Line) -> str:
        rows = matching(line.rows, what="accuracy", batches=batches)
        sizes = {row["batch_size"] for row in rows if row["batch_size"]}
        return spread(rows) + "".join(f" (batch {size})" for size in sizes)

    return Column(f"accuracy, {batches} batches", cell)


def _paper(heading: str, form: str) -> Column:
    def cell(line: Line) -> str:
        found = _PAPER.get((line["model"].rpartition("_")[2], line["method"]))
        return form.format(*found) if found else ""

    return Column(heading, cell)


def _cost_at(batches: str, column: str, heading: str, form: str = "{:,.0f}", per: float = 1) -> Column:
    return number(column, f"{heading}, {_AT[batches]}", form, per, what="speed", batches=batches)


TABLE = Table(
    name="table2",
    title="Table 2: RepOpt against RepVGG",
    keys=("what", "model", "method", "batches", "seed"),
    rows=_rows,
    figures=("images_per_second", "peak_memory_bytes", "note", *FIGURES),
    view=View(
        by=("model", "method"),
        order={"model": [f"repopt_vgg_{size}" for size in ("nano", *_MODELS)], "method": _METHODS},
        columns=[
            *("model", "method", SEEDS, _accuracy_at("equal"), _accuracy_at("largest")),
            *(_cost_at(batches, "images_per_second", "images/s") for batches in _AT),
            number("batch_size", "largest batch", what="speed", batches="largest"),
            *(_cost_at(batches, "peak_memory_bytes", "GB", "{:.1f}", 1e9) for batches in _AT),
            number("parameters", "M parameters", "{:.1f}", 1e6, what="speed", batches="equal"),
            _paper("paper, accuracy", "{0}; {1}"),
            _paper("paper, samples/s", "{3}; {4} (batch {2})"),
            _paper("paper, M parameters", "{5:.1f}"),
        ],
    ),
)
