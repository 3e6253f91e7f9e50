"""Table 2: RepVGG against RepOpt, at equal batches and at the largest that each one fits into a given memory."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paper.claims import Claim
from paper.jobs import own_scales, search_left, training_job
from paper.scope import Scope
from paper.summaries import difference, markdown, matching, notes, setting, spread
from paper.tables import Record, Row, Table, training_row
from paper.workshop import FIGURES, Workshop
from repopt.bench.training import TrainCost, measure_training
from repopt.device import environment, hardware
from repopt.files import replacing
from repopt.train.methods import Method
from repopt.train.recipe import Recipe
from repopt.train.training import Job

_METHODS: tuple[Method, ...] = ("repvgg", "repopt")
_MEMORY = 11e9  # the paper's 2080Ti
# on one GPU, as the paper counts; the second batch is only for the slope of the memory
_SPEED_BATCH, _SLOPE_BATCH = 32, 96
_STEP = 8  # a largest batch is a multiple of it, as tensor cores like
# {model: (minutes a training, minutes for all speeds)} on one H200
_MODELS = {"b1": (0.4, 2.0), "b2": (0.6, 2.0), "l1": (0.7, 3.0), "l2": (1.0, 3.0)}
_BATCHES = {"equal": "equal batches", "largest": "the largest batches"}
# accuracy at batch 32 a GPU and at the largest, that batch, samples/s a GPU at both, millions of training parameters
_PAPER = {
    ("b1", "repvgg"): ("78.41 ± 0.01", "78.65 ± 0.03", 198, 213, 243, 57.4),
    ("b1", "repopt"): ("78.47 ± 0.03", "78.62 ± 0.03", 260, 380, 445, 51.8),
    ("b2", "repvgg"): ("79.53 ± 0.08", "79.78 ± 0.14", 153, 142, 163, 89.0),
    ("b2", "repopt"): ("79.36 ± 0.09", "79.66 ± 0.12", 200, 246, 264, 80.3),
    ("l1", "repvgg"): ("79.39 ± 0.07", "79.84 ± 0.02", 106, 124, 136, 84.3),
    ("l1", "repopt"): ("79.46 ± 0.02", "79.83 ± 0.03", 140, 221, 252, 76.0),
    ("l2", "repvgg"): ("80.52 ± 0.05", "80.56 ± 0.09", 77, 82, 86, 131.0),
    ("l2", "repopt"): ("80.29 ± 0.02", "80.53 ± 0.09", 103, 138, 149, 118.1),
}


def _rows(scope: Scope) -> Iterator[Row]:
    for size, (training, speeds) in _MODELS.items() if not scope.quick else [("b1", (0.0, 0.0))]:
        for seed in scope.seeds if size == "b1" else scope.seeds[:1]:
            for method in _METHODS:
                yield _accuracy_row(scope, size, method, seed, "equal", training)
        yield _speed_row(scope, size, speeds)
        for seed in scope.seeds if size == "b1" else ():
            for method in _METHODS:
                yield _accuracy_row(scope, size, method, seed, "largest", training)


def _accuracy_row(scope: Scope, size: str, method: Method, seed: int, batches: str, minutes: float) -> Row:
    model = scope.model(size)

    def job(workshop: Workshop) -> Job:
        scales = own_scales(scope, workshop, model) if method == "repopt" else None
        made = training_job(scope, model, method, seed, scales)
        if batches == "equal":
            return made
        batch = largest_batches(scope, workshop, model)[method]
        return dataclasses.replace(made, recipe=dataclasses.replace(made.recipe, batch_size=batch))

    searches = search_left(model, 5.0) if method == "repopt" else {}
    return training_row(_key("accuracy", model, method, batches, seed), job, minutes=minutes, searches=searches)


def _speed_row(scope: Scope, size: str, minutes: float) -> Row:
    model = scope.model(size)
    return Row(
        key=_key("speed", model, None, None, 0),
        measure=lambda workshop: speeds(scope, workshop, model),
        minutes=minutes,
    )


def _key(what: str, model: str, method: str | None, batches: str | None, seed: int) -> dict[str, Any]:
    key = {"what": what, "model": model, "method": method, "batches": batches, "seed": seed}
    return {column: value for column, value in key.items() if value is not None}


def largest_batches(scope: Scope, workshop: Workshop, model: str) -> dict[str, int]:
    """The largest batch of each method that trains at 224 pixels within the memory."""
    found = speeds(scope, workshop, model)
    return {line["method"]: line["batch_size"] for line in found if line["batches"] == "largest"}


def speeds(scope: Scope, workshop: Workshop, model: str) -> list[dict[str, Any]]:
    """What training costs by each method at equal batches and at its largest."""
    return [line for method in _METHODS for line in _speeds(scope, workshop, model, method)]


def _speeds(scope: Scope, workshop: Workshop, model: str, method: Method) -> Iterator[dict[str, Any]]:
    """Memory grows linearly with the batch, so two batches tell the largest one.

    A device that does not count its memory gets twice the equal batch of training.
    """

    def line(batches: str, cost: dict[str, Any]) -> dict[str, Any]:
        return {"method": method, "batches": batches, "size": _image_size(scope), **cost}

    small = _cost(scope, workshop, model, method, _SPEED_BATCH)
    yield line("equal", small)
    largest = 2 * scope.target_recipe(0).batch_size
    if small["peak_memory_bytes"] is not None:
        large = _cost(scope, workshop, model, method, _SLOPE_BATCH, timed=False)
        slope = (large["peak_memory_bytes"] - small["peak_memory_bytes"]) / (_SLOPE_BATCH - _SPEED_BATCH)
        if slope <= 0:
            raise RuntimeError(f"{model} takes no more memory for {_SLOPE_BATCH} images than for {_SPEED_BATCH}")
        largest = (_SPEED_BATCH + int((_MEMORY - small["peak_memory_bytes"]) / slope)) // _STEP * _STEP
    yield line("largest", _cost(scope, workshop, model, method, largest))


def _cost(
    scope: Scope, workshop: Workshop, model: str, method: Method, batch: int, *, timed: bool = True
) -> dict[str, Any]:
    """What training costs at one batch, measured once a workshop; what is not timed shares the device."""
    recipe = dataclasses.replace(scope.adapt(Recipe(flip=False), 0), batch_size=batch)
    size, classes = _image_size(scope), 10 if scope.quick else 1000
    steps = (2 if scope.quick else 50) if timed else 1
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
            with replacing(kept) as unfinished:
                speed = cost.images_per_second if timed else None
                columns = {**_columns(cost, recipe), "images_per_second": speed, **environment(device)}
                unfinished.write_text(json.dumps(columns))
        found: dict[str, Any] = json.loads(kept.read_text())
    return found


def _columns(cost: TrainCost, recipe: Recipe) -> dict[str, Any]:
    return {
        "peak_memory_bytes": cost.peak_bytes,
        "parameters": cost.parameters,
        "batch_size": recipe.batch_size,
        "precision": recipe.precision,
    }


def _image_size(scope: Scope) -> int:
    return 32 if scope.quick else 224


def _part(rows: Sequence[Record]) -> list[str]:
    accuracy, speed = matching(rows, what="accuracy"), matching(rows, what="speed")
    lines = ["The paper: ImageNet, eight 2080Ti."]
    if accuracy:
        lines[0] += (
            f" Ours: Imagenette, {setting(accuracy)} Both methods have the recipe's learning rate, in proportion to "
            "the batch; others are tried in [Table 4](#table-4-optimizers-and-ablations)."
        )
    if speed:
        lines[0] += (
            f" Speed, memory and parameters on noise at {speed[0]['size']} pixels with 1,000 classes, "
            f"{speed[0]['precision']}, of both methods one after the other. The largest batch is what fits into "
            f"{_MEMORY / 1e9:g} GB, the memory of one of the paper's GPUs, in steps of {_STEP} images. The paper "
            "trains on eight; we train on one, with as many images in all at equal batches, and with one "
            "GPU's largest batch. A speed is one timing of 50 steps, and another differs by a few percent. "
            "Memory is what torch has allocated, in bf16 and compiled: the paper's GPUs filled up at other batches."
        )
        lines[0] = " ".join([lines[0], *notes(speed, "model")])
    lines += [""]
    cells = []
    for model in dict.fromkeys(row["model"] for row in rows):
        size = model.rpartition("_")[2]
        for method in _METHODS:
            at = {b: matching(accuracy, model=model, method=method, batches=b) for b in ("equal", "largest")}
            fast = {b: matching(speed, model=model, method=method, batches=b) for b in ("equal", "largest")}
            paper = _PAPER.get((size, method))
            cells.append(
                (
                    f"{model}, {method}",
                    fast["largest"][0]["batch_size"] if fast["largest"] else "",
                    *map(_accuracy, at.values()),
                    *(f"{float(fast[b][0]['images_per_second']):,.0f}" if fast[b] else "" for b in fast),
                    *(_gigabytes(fast[b]) for b in fast),
                    f"{float(fast['equal'][0]['parameters']) / 1e6:.1f} M" if fast["equal"] else "",
                    f"{paper[0]}; {paper[1]}" if paper else "",
                    f"{paper[3]}; {paper[4]} (batch {paper[2]})" if paper else "",
                    f"{paper[5]:.1f} M" if paper else "",
                )
            )
    columns = {"model, method": "<", "largest batch": ">", "accuracy, equal batches": ">", "at the largest": ">"}
    columns |= {
        f"images/s, batch {_SPEED_BATCH}": ">",
        "images/s at the largest": ">",
        f"memory, batch {_SPEED_BATCH}": ">",
    }
    columns |= {
        "memory at the largest": ">",
        "parameters": ">",
        "paper, accuracy": ">",
        "paper, samples/s": ">",
        "paper, parameters": ">",
    }
    lines += markdown(columns, cells)
    lines += ["", *(f"- {sentence}" for sentence in _comparisons(accuracy, speed))]
    return lines


def _accuracy(rows: Sequence[Record]) -> str:
    batch = next((row["batch_size"] for row in rows if row["batch_size"]), None)
    return spread(rows) + (f" (batch {batch})" if batch else "")


def _gigabytes(rows: Sequence[Record]) -> str:
    found = [f"{float(row['peak_memory_bytes']) / 1e9:.1f} GB" for row in rows if row["peak_memory_bytes"]]
    return found[0] if found else ""


def _comparisons(accuracy: Sequence[Record], speed: Sequence[Record]) -> Iterator[str]:
    for model in dict.fromkeys(row["model"] for row in (*accuracy, *speed)):
        for batches, words in _BATCHES.items():
            ours, theirs = (
                matching(accuracy, model=model, method=method, batches=batches) for method in ("repopt", "repvgg")
            )
            gap = difference(ours, theirs)
            fast, slow = (matching(speed, model=model, method=m, batches=batches) for m in ("repopt", "repvgg"))
            there, ratio_there = _papers_gap(model, batches), _papers_ratio(model, batches)
            papers = f" (the paper, on ImageNet: {there:+.2f})" if there is not None else ""
            found = [f"accuracy {gap} points over {gap.seeds} seed{'s' * (gap.seeds > 1)}{papers}"] if gap else []
            if fast and slow:
                ratio = float(fast[0]["images_per_second"]) / float(slow[0]["images_per_second"])
                papers = f" (the paper, on its GPUs: {ratio_there:.2f})" if ratio_there else ""
                found.append(f"{ratio:.2f} times the images a second{papers}")
            if found:
                yield f"{model} at {words}, RepOpt to RepVGG: {', '.join(found)}."


def _papers_gap(model: str, batches: str) -> float | None:
    """RepOpt less RepVGG in the paper."""
    size, column = model.rpartition("_")[2], {"equal": 0, "largest": 1}[batches]
    if (size, "repopt") not in _PAPER:
        return None
    ours, theirs = (float(str(_PAPER[size, method][column]).split()[0]) for method in ("repopt", "repvgg"))
    return ours - theirs


def _papers_ratio(model: str, batches: str) -> float | None:
    """RepOpt's samples a second to RepVGG's in the paper."""
    size, column = model.rpartition("_")[2], {"equal": 3, "largest": 4}[batches]
    if (size, "repopt") not in _PAPER:
        return None
    ours, theirs = (float(_PAPER[size, method][column]) for method in ("repopt", "repvgg"))
    return ours / theirs


def _claims(rows: Sequence[Record]) -> list[Claim]:
    """Of the model that has several seeds."""
    found = []
    for batches, words in _BATCHES.items():
        accuracy = matching(rows, what="accuracy", model="repopt_vgg_b1", batches=batches)
        gap = difference(matching(accuracy, method="repopt"), matching(accuracy, method="repvgg"))
        paper = _papers_gap("repopt_vgg_b1", batches)
        if gap and paper is not None:
            text = f"Table 2: RepOpt reaches RepVGG's accuracy at {words}"
            found.append(Claim(text=text, model="repopt_vgg_b1", paper=paper, ours=gap, alike=True))
    return found


def _verdict(rows: Sequence[Record]) -> str | None:
    b1 = [row for row in rows if row["model"] == "repopt_vgg_b1"]
    found = list(_comparisons(matching(b1, what="accuracy"), matching(b1, what="speed")))
    return " ".join(found) if found else None


TABLE = Table(
    name="table2",
    title="Table 2: RepOpt against RepVGG",
    keys=("what", "model", "method", "batches", "seed"),
    rows=_rows,
    part=_part,
    verdict=_verdict,
    claims=_claims,
    figures=("images_per_second", "peak_memory_bytes", "note", *FIGURES),
)
