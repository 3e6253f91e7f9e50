"""Table 2: RepOpt against RepVGG, at equal batches and at the largest that each fits into a given memory."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from paper.jobs import TRAINED_BY, Scope, Training, training_job
from paper.tables import Table, TableRow
from paper.view import SEEDS, Column, Line, View, matching, number, papers, spread
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.train_cost import measure_training
from repopt.device import environment, hardware
from repopt.files import replacing
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_METHODS: dict[Method, dict[str, Any]] = {"repvgg": {"method": "repvgg"}, "repopt": {"scales": "searched"}}
_SIZES = ("b1", "b2", "l1", "l2")  # the first with all seeds
_MEMORY = 11e9  # the paper's 2080Ti
# on one GPU, as the paper counts; the second batch is only for the slope of the memory
_SPEED_BATCH, _SLOPE_BATCH = 32, 96
_AT = {"equal": f"batch {_SPEED_BATCH}", "largest": "largest batch"}
_STEP = 8  # a largest batch is a multiple of it, as tensor cores like
# accuracy at equal batches and at the largest, that batch on one GPU, samples/s at both, millions of parameters
_PAPER: dict[tuple[str, str], tuple[str, str, int, int, int, float]] = {
    ("repopt_vgg_b1", "repvgg"): ("78.41 ± 0.01", "78.65 ± 0.03", 198, 213, 243, 57.4),
    ("repopt_vgg_b1", "repopt"): ("78.47 ± 0.03", "78.62 ± 0.03", 260, 380, 445, 51.8),
    ("repopt_vgg_b2", "repvgg"): ("79.53 ± 0.08", "79.78 ± 0.14", 153, 142, 163, 89.0),
    ("repopt_vgg_b2", "repopt"): ("79.36 ± 0.09", "79.66 ± 0.12", 200, 246, 264, 80.3),
    ("repopt_vgg_l1", "repvgg"): ("79.39 ± 0.07", "79.84 ± 0.02", 106, 124, 136, 84.3),
    ("repopt_vgg_l1", "repopt"): ("79.46 ± 0.02", "79.83 ± 0.03", 140, 221, 252, 76.0),
    ("repopt_vgg_l2", "repvgg"): ("80.52 ± 0.05", "80.56 ± 0.09", 77, 82, 86, 131.0),
    ("repopt_vgg_l2", "repopt"): ("80.29 ± 0.02", "80.53 ± 0.09", 103, 138, 149, 118.1),
}


def _equal(size: str, method: Method) -> Training:
    key = {"what": "accuracy", "method": method, "batches": "equal"}
    return Training(model=size, key=key, one_seed=size != _SIZES[0], **_METHODS[method])


def _others(scope: Scope) -> Iterator[TableRow]:
    for model in map(scope.model, _SIZES):
        yield TableRow(key={"what": "speed", "model": model, "seed": 0}, measure=partial(speeds, scope, model))
    model = scope.model(_SIZES[0])
    for seed, method in product(scope.seeds, _METHODS):
        key = {"what": "accuracy", "model": model, "method": method, "batches": "largest", "seed": seed}
        yield TableRow(key=key, measure=partial(_at_largest, scope, model, method, seed))


def _at_largest(scope: Scope, model: str, method: Method, seed: int, workshop: Workshop) -> list[dict[str, Any]]:
    batch = {"batch_size": largest_batches(scope, model, workshop)[method]}
    training = Training(model=model, fields=batch, **_METHODS[method])
    return [figures_of(workshop.run(training_job(scope, workshop, training, seed)))]


def largest_batches(scope: Scope, model: str, workshop: Workshop) -> dict[str, int]:
    """The largest batch of each method that trains at 224 pixels within the memory."""
    found = speeds(scope, model, workshop)
    return {line["method"]: line["batch_size"] for line in found if line["batches"] == "largest"}


def speeds(scope: Scope, model: str, workshop: Workshop) -> list[dict[str, Any]]:
    """What training costs by each method at equal batches and at its largest, measured once in a workshop."""
    recipe, device = scope.adapt(Recipe(flip=False), 0), workshop.chosen_device
    name = hashlib.sha256(f"{hardware(device)} {recipe}".encode()).hexdigest()[:8]
    kept = workshop.folder / f"speeds-{model}-{name}.json"
    with workshop.claim(kept.stem, wait=True):
        if not kept.exists():
            with workshop.alone():
                found = [cost for method in _METHODS for cost in _costs(scope, model, method, recipe, device)]
            with replacing(kept) as unfinished:
                unfinished.write_text(json.dumps(found))
        lines: list[dict[str, Any]] = json.loads(kept.read_text())
    return lines


def _costs(scope: Scope, model: str, method: Method, recipe: Recipe, device: torch.device) -> Iterator[dict[str, Any]]:
    """Memory grows linearly with the batch, so two batches give the largest one.

    A device that does not count its memory gets twice the equal batch of training.
    """
    size, classes, steps = (32, 10, 2) if scope.quick else (224, 1000, 50)

    def cost(batches: str, batch: int) -> dict[str, Any]:
        torch.compiler.reset()
        at: dict[str, Any] = {"size": size, "classes": classes, "steps": steps, "device": device}
        (found,) = measure_training(model, (method,), replace(recipe, batch_size=batch), **at)
        about = {"method": method, "batches": batches, "batch_size": batch, "size": size, **environment(device)}
        measured = {"images_per_second": found.images_per_second, "peak_memory_bytes": found.peak_bytes}
        return {**about, **measured, "parameters": found.parameters, "precision": recipe.precision}

    small = cost("equal", _SPEED_BATCH)
    held, largest = small["peak_memory_bytes"], 2 * scope.adapt(TRAINED_BY["imagenette"], 0).batch_size
    if held is not None:
        slope = (cost("", _SLOPE_BATCH)["peak_memory_bytes"] - held) / (_SLOPE_BATCH - _SPEED_BATCH)
        if slope <= 0:
            raise RuntimeError(f"{model} takes no more memory for {_SLOPE_BATCH} images than for {_SPEED_BATCH}")
        largest = (_SPEED_BATCH + int((_MEMORY - held) / slope)) // _STEP * _STEP
    yield from (small, cost("largest", largest))


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
    trainings=[_equal(size, method) for size, method in product(_SIZES, _METHODS)],
    others=_others,
    figures=("images_per_second", "peak_memory_bytes", "note", *FIGURES),
    view=View(
        by=("model", "method"),
        order={"model": [f"repopt_vgg_{size}" for size in ("nano", *_SIZES)], "method": list(_METHODS)},
        columns=[
            *("model", "method", SEEDS, _accuracy_at("equal"), _accuracy_at("largest")),
            *(_cost_at(batches, "images_per_second", "images/s") for batches in _AT),
            number("batch_size", "largest batch", what="speed", batches="largest"),
            *(_cost_at(batches, "peak_memory_bytes", "GB", "{:.1f}", 1e9) for batches in _AT),
            number("parameters", "M parameters", "{:.1f}", 1e6, what="speed", batches="equal"),
            papers("paper, accuracy", _PAPER, "model", "method", form="{0[0]}; {0[1]}"),
            papers("paper, samples/s", _PAPER, "model", "method", form="{0[3]}; {0[4]} (batch {0[2]})"),
            papers("paper, M parameters", _PAPER, "model", "method", form="{0[5]:.1f}"),
        ],
    ),
)
