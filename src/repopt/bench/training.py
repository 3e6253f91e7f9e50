"""How many images a second a method trains, and how much memory it takes; all methods in one run.

The data is noise that lives on the device, so that nothing but the training is measured. Each method's steps are timed
in one go, after compilation and capture.
"""

import gc
import time
from dataclasses import dataclass

import torch

from repopt.data import load_data
from repopt.train.loop import Run
from repopt.train.methods import Method
from repopt.train.recipe import Recipe
from repopt.train.training import Job, build

_WARM = 8  # steps before the clock starts


@dataclass(frozen=True, kw_only=True)
class TrainCost:
    """What training costs.

    Attributes:
        model: the plain model's name.
        method: how it is trained.
        images_per_second: over all timed steps.
        ratio: to the first method of the run.
        peak_bytes: the most memory that was held; None where the device does not count.
        compile_seconds: before the first timed step.
        parameters: in training.
    """

    model: str
    method: str
    images_per_second: float
    ratio: float
    peak_bytes: int | None
    compile_seconds: float
    parameters: int


def measure_training(
    model: str,
    methods: tuple[Method, ...],
    recipe: Recipe,
    *,
    size: int,
    classes: int,
    steps: int,
    device: torch.device,
) -> list[TrainCost]:
    """Times the training of a model by several methods, one after the other.

    Args:
        model: the plain model's name.
        methods: the first is what the others are compared with.
        recipe: batch size, precision, optimizer and the like.
        size: side of the images.
        classes: how many.
        steps: timed ones.
        device: where.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    data = load_data(f"fake:{max(classes, recipe.batch_size * 2)},{classes},{size}")
    costs: list[TrainCost] = []
    for method in methods:
        gc.collect()  # an optimizer and what is attached to it hold each other, and would count into the next peak
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        subject = build(Job(method=method, model=model, data=data.name, recipe=recipe, scales="ones"), data, device)
        run = Run(subject, data, recipe, None, device=device)
        start = time.perf_counter()
        _take(run, _WARM)
        warm = time.perf_counter()
        _take(run, steps)
        speed = steps * recipe.batch_size / (time.perf_counter() - warm)
        costs.append(
            TrainCost(
                model=model,
                method=method,
                images_per_second=speed,
                ratio=speed / (costs[0].images_per_second if costs else speed),
                peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
                compile_seconds=warm - start,
                parameters=sum(param.numel() for param in subject.model.parameters()),
            )
        )
        del subject, run
    return costs


def _take(run: Run, steps: int) -> None:
    epoch = taken = 0
    while taken < steps:
        for x, y in run.batches.epoch(epoch):
            if taken == steps:
                break
            run.train_on(x, y, epoch, taken)
            taken += 1
        epoch += 1
    run.synchronize()
