"""What a way to train costs, from a few steps of it: before hours are spent, and whether it fits the model at all."""

import gc
import tempfile
import time
from dataclasses import replace
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
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.training import build

INFERRED = {"cpu": 16, "cuda": 128}  # images a call, where the inference is timed
_WARM = 8  # steps in which CUDA compiles and captures
_ENOUGH_STEPS, _ENOUGH_SECONDS = 20, 1.5  # whichever comes first
_FORWARD = 0.4  # of a training image's time goes into an evaluated one, at most
_CALIBRATED = 4.0  # times an image in INT8: it is computed in float, and all activations are kept
_INFERRED_INT8 = 16  # images
_SAVING = 0.5  # seconds for the files of a run


def tried(job: Job, data: DataSet, device: torch.device) -> Cost:
    """Takes a few steps of a job, and extrapolates.

    Args:
        job: what is trained.
        data: its data.
        device: where.
    """
    torch.compiler.reset()  # as each way compiles its own
    gc.collect()
    recipe = replace(job.recipe, tune=bool(job.recipe.tune))  # as in the few epochs that fit into some minutes
    start = time.perf_counter()
    trainer = Trainer(build(job, data, device), data, recipe, None, device=device, quiet=True)
    built = time.perf_counter() - start
    take_steps(trainer, 1 if device.type == "cpu" else _WARM)
    ready = time.perf_counter() - start
    each = ready if device.type == "cpu" else built  # the trainings of a way share what is compiled
    step = _seconds_of_a_step(trainer)
    image = _FORWARD * step / recipe.batch_size
    evaluations = -(-recipe.epochs // recipe.eval_every) / recipe.epochs  # of an epoch
    return Cost(
        start=each + _SAVING,
        epoch=len(trainer.batches) * step + evaluations * len(data.val) * image,
        seed=len(data.val) * image,  # the float model, beside the INT8 one
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


def seconds_of_int8(job: Job, data: DataSet, int8: Int8) -> float:
    """How long it takes to calibrate a job's model, to write it and to evaluate it, on the CPU.

    It raises what the exporter raises, if that cannot write the model.
    """
    model = as_deployed(finished_model(build(job, data, torch.device("cpu")).model))
    model.eval()
    size = job.recipe.eval_size or job.recipe.size or data.size
    images = torch.randn(_INFERRED_INT8, data.channels, size, size)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        quantized = quantize_model(model, [images[:2]], Path(folder, FILES[int8.backend]), setting=int8)
        writing = time.perf_counter() - start
        quantized(images)  # the first call takes longer
        start = time.perf_counter()
        quantized(images)
        image = (time.perf_counter() - start) / len(images)
    return writing + image * (_CALIBRATED * min(int8.images, len(data.train)) + len(data.val))
