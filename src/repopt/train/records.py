"""What the files of a run folder hold, each as a type; whatever is read is checked against it.

A run that is still going, or was killed, has no summary and fewer epochs. Keys that a newer version added are left out,
but a recipe's: a field that this version does not know would train differently, and is an error.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from repopt.data.images import Broken
from repopt.files import read_as, read_lines_as
from repopt.train.recipe import BOUNDS

T = TypeVar("T")
Means = Mapping[str, Mapping[str, float]]  # of searched scales: {operator: {branch: mean over channels}}


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """run.json: what is trained on what, and where. What has a default may be missing."""

    method: str
    model: str
    data: str
    kernel: str
    train_images: int
    val_images: int
    image_size: int
    seed: int
    parameters: int
    id: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    branches: str | dict[str, list[str]] | None = None
    limit: int | None = None
    broken: Broken = "raise"
    weights: str | None = None
    scales: str | None = None
    data_digest: str | None = None
    data_listing: str | None = None
    held_out: str | None = None
    processes: int = 1
    precision: str | None = None
    hardware: str | None = None
    threads: str | None = None
    python: str | None = None
    torch: str | None = None
    repopt: str | None = None
    commit: str | None = None
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """config.json of a finished run: its model, its classes, and how images are made ready for it."""

    model: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    eval_size: int | None = None
    eval_share: float | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.mean)) or not all(0 < each < math.inf for each in self.std):
            raise ValueError("mean and std must be finite numbers, and std more than 0")
        if not 1 <= len(self.mean) == len(self.std):
            raise ValueError("mean and std must hold one number for each channel")
        if not all(each is None or each in BOUNDS["size"] for each in (self.size, self.eval_size)):
            raise ValueError(f"size and eval_size must be {BOUNDS['size']}")


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """A line of metrics.jsonl; accuracies in percent, None where nothing was measured."""

    epoch: int
    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
    ema_accuracy: float | None = None
    images_per_second: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        _check_counted(self.epoch, [self.seconds, self.images_per_second])


@dataclass(frozen=True, kw_only=True)
class ScalesRecord:
    """A line of scales.jsonl: {operator: {branch: mean over channels}} after an epoch, 0 being the start."""

    epoch: int
    scales: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """summary.json; seconds by what they were spent on, `guessing` the accuracy of naming the most common class.

    `ema_accuracy` is that of the moving average of the weights, where there is one.
    """

    epochs: int
    seconds: dict[str, float]
    train_accuracy: float | None = None
    val_accuracy: float | None = None
    best_val_accuracy: float | None = None
    best_epoch: int | None = None
    ema_accuracy: float | None = None
    guessing: float | None = None
    images_per_second: float | None = None
    peak_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        _check_counted(self.epochs, [*self.seconds.values(), self.images_per_second])


def _check_counted(epochs: int, measured: Sequence[float | None]) -> None:
    """Raises for what no run counts or measures; losses may be anything, of a training that diverged."""
    if not 0 <= epochs <= BOUNDS["epochs"].high or not all(each is None or 0 <= each < 1e12 for each in measured):
        raise ValueError("epochs, seconds and images per second must be numbers that a run can have")


@dataclass(frozen=True, kw_only=True)
class Int8Layer:
    """What INT8 does to a layer: to the logits with this layer alone, and to its output with all; SNR in dB."""

    layer: str
    agreement_alone: float | None = None
    snr_alone: float | None = None
    snr: float | None = None


@dataclass(frozen=True, kw_only=True)
class Int8Record:
    """quantized.json, which `repopt quantize` leaves in a folder of its own; speeds in images per second."""

    method: str
    weights: str
    form: str
    backend: str
    float_accuracy: float
    int8_accuracy: float
    drop: float
    float_bytes: int
    int8_bytes: int
    calibrator: str | None = None
    trim: float = 0.0
    symmetric: bool = False
    rounding: str = "nearest"
    float_eager: float | None = None
    float_compiled: float | None = None
    int8: float | None = None
    layers: tuple[Int8Layer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run folder, read.

    Attributes:
        folder: where.
        info: what was trained, and where.
        recipe: as recipe.json has it.
        epochs: by epoch; if one was run twice, the later line.
        scales: for a search, {epoch: {operator: {branch: mean}}}, epoch 0 being the start.
        summary: None while the run is not finished.
        int8: what it was quantized to.
    """

    folder: Path
    info: RunInfo
    recipe: Mapping[str, Any]
    epochs: tuple[EpochRecord, ...]
    scales: Mapping[int, Means]
    summary: RunSummary | None
    int8: tuple[Int8Record, ...]

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def epochs_done(self) -> int:
        return self.summary.epochs if self.summary else max((epoch.epoch for epoch in self.epochs), default=0)

    @property
    def val_accuracy(self) -> float | None:
        """After the last epoch; of an unfinished run, when it was last evaluated."""
        if self.summary:
            return self.summary.val_accuracy
        found = [epoch.val_accuracy for epoch in self.epochs if epoch.val_accuracy is not None]
        return found[-1] if found else None

    @property
    def images_per_second(self) -> float | None:
        if self.summary:
            return self.summary.images_per_second
        found = [epoch.images_per_second for epoch in self.epochs if epoch.images_per_second is not None]
        return statistics.median_high(found) if found else None

    @property
    def seconds(self) -> float:
        """The whole time; of an unfinished run, that of its epochs."""
        if self.summary:
            return sum(self.summary.seconds.values())
        return sum(epoch.seconds or 0.0 for epoch in self.epochs)


def read_run(folder: str | Path) -> RunRecord:
    """Reads a run folder.

    Raises:
        ValueError: it is no run, or a file in it is corrupt.
    """
    folder = Path(folder)
    file = folder / "summary.json"
    summary = read_as(file, RunSummary) if file.exists() else None
    epochs = {record.epoch: record for record in read_lines_as(folder / "metrics.jsonl", EpochRecord)}
    if summary is not None:
        check_epochs(folder, epochs, summary.epochs)
    info = read_info(folder)
    recipe = _as_today(read_json(folder, "recipe.json"), info.method)
    if summary is not None and summary.epochs < recipe.get("epochs", 0):
        summary = None  # of a run that was lengthened since, and is not finished again
    scales = {record.epoch: record.scales for record in read_lines_as(folder / "scales.jsonl", ScalesRecord)}
    return RunRecord(
        folder=folder.resolve(),  # whose last part is a name, also of "."
        info=info,
        recipe=recipe,
        epochs=tuple(epochs[epoch] for epoch in sorted(epochs)),
        scales={epoch: scales[epoch] for epoch in sorted(scales)},
        summary=summary,
        int8=tuple(read_as(path, Int8Record) for path in sorted(folder.glob("*/quantized.json"))),
    )


def _as_today(recipe: dict[str, Any], method: str) -> dict[str, Any]:
    """A recipe of any version: once the scales had a learning rate of 1 in every run, also in those without scales."""
    if method == "search" or recipe.get("freeze_at") is not None:
        return {**recipe, "scale_lr": recipe.get("scale_lr") or 1.0}
    return {field: value for field, value in recipe.items() if field != "scale_lr"}


def check_epochs(folder: Path, recorded: Iterable[int], trained: int) -> None:
    """Raises unless metrics.jsonl has a record of every epoch that was trained."""
    if lost := sorted({*range(1, trained + 1)} - {*recorded}):
        path = str(folder / "metrics.jsonl")
        raise ValueError(f"{path!r} has no record of epoch {lost[0]}, which was trained: bring a copy back")


def check_distinct(runs: Sequence[str | Path]) -> None:
    """Raises where a folder is given twice."""
    paths = [Path(folder).resolve() for folder in runs]
    twice = [str(folder) for folder, path in zip(runs, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise ValueError(f"the run {twice[0]!r} is given twice: name each folder once")


def read_info(folder: str | Path) -> RunInfo:
    return _read(Path(folder), "run.json", RunInfo)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run."""
    return _read(folder, name, dict[str, Any])


def _read(folder: Path, name: str, kind: type[T]) -> T:
    try:
        return read_as(folder / name, kind)
    except (FileNotFoundError, NotADirectoryError) as error:
        if folder.is_file():
            raise ValueError(f"{str(folder)!r} is a file: give a folder that a search or training wrote") from error
        if not folder.is_dir():
            raise ValueError(f"there is no folder {str(folder)!r}: give one that a search or training wrote") from error
        hint = next((f"; {str(run.parent)!r} is one" for run in sorted(folder.glob(f"*/{name}"))), "")
        raise ValueError(f"{str(folder)!r} is not a run folder: it has no {name}{hint}") from error
