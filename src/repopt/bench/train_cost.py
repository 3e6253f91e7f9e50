"""Images per second and memory of training by each method, all in one run.

The data is noise held on the device, so that only the training is measured. Each method's steps are timed in one go,
after compilation and capture.
"""

import gc
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from repopt.data import DataSet, load_data
from repopt.models.counting import parameters
from repopt.train.branch_choice import BranchChoice
from repopt.train.job import Job
from repopt.train.job_model import check_options
from repopt.train.loop import Trainer
from repopt.train.methods import Method, plans_branches
from repopt.train.recipe import Recipe
from repopt.train.training import build

_WARM = 8  # steps before the clock starts


@dataclass(frozen=True, kw_only=True)
class TrainCost:
    """What training costs.

    Attributes:
        model: the plain model's name.
        method: how it is trained.
        images_per_second: over all timed steps.
        ratio: to the first method of the run.
        peak_bytes: the most memory that was held; None on a CPU.
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
    options: Mapping[str, Any] | None = None,
    branches: BranchChoice | None = None,
) -> Iterator[TrainCost]:
    """Times the training of a model by several methods, one after the other.

    Args:
        model: the plain model's name, or a reference.
        methods: the first is what the others are compared with.
        recipe: batch size, precision, optimizer and the like.
        size: side of the images.
        classes: how many.
        steps: timed ones.
        device: where.
        options: the model's own.
        branches: of the methods that plan some; as a `Job` takes them.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    data = load_data(f"fake:{max(classes, recipe.batch_size * 2)},{classes},{size}")
    first: float | None = None
    for method in methods:
        planned = branches if plans_branches(model, method) else None
        job = Job(
            method=method,
            model=model,
            data=data.name,
            recipe=recipe,
            scales="ones",
            options=dict(options or {}),
            branches=planned,
        )
        cost = _measured(job, data, steps, device, first)
        first = first or cost.images_per_second
        yield cost


def _measured(job: Job, data: DataSet, steps: int, device: torch.device, first: float | None) -> TrainCost:
    """One method, compared with the first one's images per second."""
    torch.compiler.reset()  # each method pays for its own compilation
    gc.collect()  # an optimizer and what is attached to it hold each other, and would count into the next peak
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    check_options(job, data)
    trainer = Trainer(build(job, data, device), data, job.recipe, None, device=device)
    start = time.perf_counter()
    take_steps(trainer, _WARM)
    warm = time.perf_counter()
    take_steps(trainer, steps)
    speed = steps * job.recipe.batch_size / (time.perf_counter() - warm)
    return TrainCost(
        model=job.model,
        method=job.method,
        images_per_second=speed,
        ratio=speed / (first or speed),
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        compile_seconds=warm - start,
        parameters=parameters(trainer.subject.model),
    )


def take_steps(trainer: Trainer, steps: int) -> None:
    """Takes so many steps, and waits for the device."""
    epoch = taken = 0
    with trainer.arithmetic():
        while taken < steps:
            for pixels, labels in trainer.batches.pixels(epoch):
                if taken == steps:
                    break
                trainer.train_on(pixels, labels, epoch, taken)
                taken += 1
            epoch += 1
        trainer.synchronize()
