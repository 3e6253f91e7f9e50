"""What a way to train costs, from a few steps of it: before hours are spent, and whether it fits the model at all."""

import gc
import tempfile
import time
from pathlib import Path

import torch

from repopt.bench.inference import seconds_taken
from repopt.bench.train_cost import take_steps
from repopt.compare.budget import Cost
from repopt.data import DataSet
from repopt.models import as_deployed
from repopt.quantize import Int8, quantize_model
from repopt.quantize.ptq import FILES
from repopt.train.best_weights import finished_model
from repopt.train.loop import Trainer
from repopt.train.training import Job, build

INFERRED = {"cpu": 16, "cuda": 128}  # images a call, where the inference is timed
_WARM = 8  # steps in which CUDA compiles and captures
_ENOUGH_STEPS, _ENOUGH_SECONDS = 20, 1.5  # whichever comes first
_FORWARD = 0.4  # of a training image's time goes into an evaluated one, at most
_CALIBRATED = 2.0  # times an evaluated image: all activations are kept
_SAVING = 0.5  # seconds for the files of a run


def tried(job: Job, data: DataSet, device: torch.device, *, loading: float) -> Cost:
    """Takes a few steps of a job, and extrapolates.

    Args:
        job: what is trained.
        data: its data.
        device: where.
        loading: seconds that it takes to load the data, as INT8 does.
    """
    torch.compiler.reset()  # as each way compiles its own
    gc.collect()
    recipe, start = job.recipe, time.perf_counter()
    trainer = Trainer(build(job, data, device), data, recipe, None, device=device, quiet=True)
    built = time.perf_counter() - start
    take_steps(trainer, 1 if device.type == "cpu" else _WARM)
    ready = time.perf_counter() - start
    each = ready if device.type == "cpu" else built  # the trainings of a way share what is compiled
    step = _seconds_of_a_step(trainer)
    image = _FORWARD * step / recipe.batch_size
    evaluations = -(-recipe.epochs // recipe.eval_every) / recipe.epochs  # of an epoch
    quantized = _CALIBRATED * min(Int8().images, len(data.train)) + 2 * len(data.val)  # images
    return Cost(
        start=each + _SAVING,
        epoch=len(trainer.batches) * step + evaluations * len(data.val) * image,
        seed=loading + quantized * image,
        once=seconds_taken(INFERRED[device.type] * image) + 2 * (ready - each),  # compiled to train, and to infer
    )


def _seconds_of_a_step(trainer: Trainer) -> float:
    """By steps in one go: each start fills the queue of the processes that decode images."""
    once = _timed(trainer, 2) / 2
    steps = int(min(_ENOUGH_STEPS, max(2, _ENOUGH_SECONDS / once)))
    return _timed(trainer, steps) / steps


def _timed(trainer: Trainer, steps: int) -> float:
    start = time.perf_counter()
    take_steps(trainer, steps)
    return time.perf_counter() - start


def seconds_to_write(job: Job, data: DataSet, int8: Int8) -> float:
    """How long it takes to write a job's model as an INT8 file; raises what the exporter raises if it cannot."""
    model = as_deployed(finished_model(build(job, data, torch.device("cpu")).model)).eval()
    size = job.recipe.eval_size or job.recipe.size or data.size
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        quantize_model(
            model, [torch.randn(2, data.channels, size, size)], Path(folder, FILES[int8.backend]), setting=int8
        )
    return time.perf_counter() - start
