"""Images per second of the data: decoded from files, and as batches on the device; beside what a model takes.

Training is held back by its data if the batches come slower than the model takes them.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from repopt.bench.train_cost import measure_training
from repopt.data import Augmentation, DataSet, Images, TrainBatches, load_data
from repopt.data.datasets import kind_of
from repopt.data.folder import read_splits
from repopt.data.images import balanced
from repopt.data.loaders import Batch
from repopt.data.processes import cores, decode
from repopt.train.branch_choice import BranchChoice
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

Stage = Literal["decoding", "batches", "training"]

_WARM = 8  # batches before the clock starts, or all that the workers had ready


@dataclass(frozen=True, kw_only=True)
class DataSpeed:
    """How fast one part of the way from the files to the model is.

    Attributes:
        stage: `decoding` (all files of a folder that is held in memory, without the cache), `batches` (augmented, on
            the device, without a model) or `training` (the model's, on noise held on the device).
        size: side of the images.
        images: how many were timed.
        images_per_second: over all of them.
        cores: that this process may use.
    """

    stage: Stage
    size: int
    images: int
    images_per_second: float
    cores: int


def measure_data(
    source: str,
    recipe: Recipe,
    *,
    device: torch.device,
    steps: int = 50,
    limit: int | None = None,
    model: str | None = None,
    method: Method = "repopt",
    options: Mapping[str, Any] | None = None,
    branches: BranchChoice | None = None,
) -> list[DataSpeed]:
    """Times a data set as it is read in training.

    Args:
        source: as `load_data` takes it.
        recipe: batch size, augmentation, workers and the like.
        device: where the batches are wanted.
        steps: timed ones.
        limit: keep that many images.
        model: a plain model to time beside it.
        method: how the model is trained.
        options: the model's own.
        branches: as a `Job` takes them.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    data = load_data(source, size=recipe.size, limit=limit)
    speeds = []
    kind, path = kind_of(source)
    if kind == "folder" and isinstance(data.train, Images):
        speeds.append(_decoding(Path(path).expanduser(), data.size, limit))
    speeds.append(_batches(data, recipe, device, steps))
    if model is not None:
        plain, side = dataclasses.asdict(Augmentation()), recipe.size or data.size
        (cost,) = measure_training(
            model,
            (method,),
            dataclasses.replace(recipe, **plain),
            size=side,
            classes=len(data.classes),
            steps=steps,
            device=device,
            options=options,
            branches=branches,
        )
        images = steps * recipe.batch_size
        speeds.append(_speed("training", side, images, images / cost.images_per_second))
    return speeds


def _decoding(path: Path, size: int, limit: int | None) -> DataSpeed:
    files = read_splits(path)
    parts = [each if limit is None else each.take(balanced(each.labels, limit)) for each in (files.train, files.val)]
    paths = [name for part in parts for name in part.paths]
    start = time.perf_counter()
    decode(paths, size)
    return _speed("decoding", size, len(paths), time.perf_counter() - start)


def _batches(data: DataSet, recipe: Recipe, device: torch.device, steps: int) -> DataSpeed:
    batches = TrainBatches(
        data.train,
        recipe.augmentation,
        batch_size=recipe.batch_size,
        size=recipe.size or data.size,
        mean=data.mean,
        std=data.std,
        device=device,
        seed=recipe.seed,
        workers=recipe.workers,
    )
    # batches in memory are made in groups, so that only whole epochs take as long as the batches that come out
    unit = len(batches) if isinstance(data.train, Images) else 1
    warm, timed = (math.ceil(count / unit) * unit for count in (max(_WARM, 2 * recipe.workers), steps))
    stream = (batch for number in itertools.count() for batch in batches.epoch(number))
    _take(stream, warm, device)
    start = time.perf_counter()
    _take(stream, timed, device)
    return _speed("batches", batches.size, timed * recipe.batch_size, time.perf_counter() - start)


def _take(stream: Iterator[Batch], count: int, device: torch.device) -> None:
    for _ in itertools.islice(stream, count):
        pass
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _speed(stage: Stage, size: int, images: int, seconds: float) -> DataSpeed:
    return DataSpeed(stage=stage, size=size, images=images, images_per_second=images / seconds, cores=cores())
