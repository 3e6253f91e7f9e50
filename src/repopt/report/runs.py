"""A run as its folder tells it: recipe.json, run.json, metrics.jsonl, and perhaps scales.jsonl and summary.json.

A run that still goes, or was killed, has no summary and fewer epochs; its last line may be torn, and is then left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repopt.plans.scales import Scales
from repopt.report.searches import Search

Record = Mapping[str, Any]

# what run.json must say; everything else in it is where and with what the run was made
_SETTING = ("method", "model", "data", "kernel", "train_images", "val_images", "image_size", "seed", "parameters")


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One line of metrics.jsonl; accuracies in percent, None where nothing was measured."""

    epoch: int
    train_loss: float | None
    train_accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    images_per_second: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run says of itself."""

    epochs: int
    val_accuracy: float | None
    best_val_accuracy: float | None
    best_epoch: int | None
    images_per_second: float | None
    peak_memory_bytes: int | None
    seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder, read.

    Attributes:
        environment: what else run.json says: hardware, versions, precision, date, digest of the data.
        epochs: by epoch; of an epoch that was run again after a resume, the later line.
        scales: for a search, {epoch: {operator: {branch: mean}}}, epoch 0 being the start.
        summary: None while the run is not finished.
    """

    folder: Path
    method: str
    model: str
    data: str
    kernel: str
    train_images: int
    val_images: int
    image_size: int
    seed: int
    parameters: int
    environment: Mapping[str, str]
    recipe: Record
    epochs: tuple[Epoch, ...]
    scales: Mapping[int, Mapping[str, Mapping[str, float]]]
    summary: Summary | None

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
        found = sorted(epoch.images_per_second for epoch in self.epochs if epoch.images_per_second is not None)
        return found[len(found) // 2] if found else None

    @property
    def seconds(self) -> float:
        """All the time the run took; of an unfinished run, its epochs' alone."""
        if self.summary:
            return sum(self.summary.seconds.values())
        return sum(epoch.seconds or 0.0 for epoch in self.epochs)


def read_run(folder: str | Path) -> Run:
    """Reads the folder of a run.

    Raises:
        FileNotFoundError: there is no such folder, or it is not a run's.
        ValueError: a file in it is corrupt.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}: give the folder that a search or training wrote")
    for name in ("recipe.json", "run.json"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{str(folder)!r} is not the folder of a run, as it holds no {name}: give one that a search or "
                "training wrote"
            )
    about, where = _read_json(folder / "run.json")
    summary = folder / "summary.json"
    return Run(
        folder=folder,
        method=_text(about, "method", where),
        model=_text(about, "model", where),
        data=_text(about, "data", where),
        kernel=_text(about, "kernel", where),
        train_images=_whole(about, "train_images", where),
        val_images=_whole(about, "val_images", where),
        image_size=_whole(about, "image_size", where),
        seed=_whole(about, "seed", where),
        parameters=_whole(about, "parameters", where),
        environment={
            key: str(value) for key, value in about.items() if key not in _SETTING and value not in (None, {})
        },
        recipe=_read_json(folder / "recipe.json")[0],
        epochs=_epochs(folder / "metrics.jsonl"),
        scales=_scales(folder / "scales.jsonl"),
        summary=_summary(*_read_json(summary)) if summary.is_file() else None,
    )


def read_search(folder: str | Path, name: str) -> Search:
    """A finished Hyper-Search, with the means of its scales after each epoch."""
    run, scales = read_run(folder), Path(folder, "scales.safetensors")
    if run.method != "search":
        raise ValueError(f"{str(folder)!r} is a run of the method {run.method}: give the folder of a search")
    if not run.scales or not scales.exists():
        raise ValueError(f"the search in {str(folder)!r} is not finished: it has no scales yet")
    return Search(
        name=name, model=run.model, data=run.data, seed=run.seed, history=run.scales, scales=Scales.load(scales)
    )


def _epochs(path: Path) -> tuple[Epoch, ...]:
    found = {}
    for record, where in _read_lines(path):
        epoch = _whole(record, "epoch", where)
        found[epoch] = Epoch(
            epoch=epoch,
            train_loss=_number(record, "train_loss", where),
            train_accuracy=_number(record, "train_accuracy", where),
            val_loss=_number(record, "val_loss", where),
            val_accuracy=_number(record, "val_accuracy", where),
            images_per_second=_number(record, "images_per_second", where),
            seconds=_number(record, "seconds", where),
        )
    return tuple(found[epoch] for epoch in sorted(found))


def _scales(path: Path) -> dict[int, dict[str, dict[str, float]]]:
    found = {}
    for record, where in _read_lines(path):
        found[_whole(record, "epoch", where)] = {
            operator: _numbers(_mapping(record, "scales", where), operator, where)
            for operator in _mapping(record, "scales", where)
        }
    return {epoch: found[epoch] for epoch in sorted(found)}


def _summary(record: Record, where: str) -> Summary:
    best, memory = _number(record, "best_epoch", where), _number(record, "peak_memory_bytes", where)
    return Summary(
        epochs=_whole(record, "epochs", where),
        val_accuracy=_number(record, "val_accuracy", where),
        best_val_accuracy=_number(record, "best_val_accuracy", where),
        best_epoch=None if best is None else int(best),
        images_per_second=_number(record, "images_per_second", where),
        peak_memory_bytes=None if memory is None else int(memory),
        seconds=_numbers(record, "seconds", where),
    )


def _read_json(path: Path) -> tuple[Record, str]:
    """The dictionary in a file, and how an error calls the place."""
    return _parsed(path.read_text(encoding="utf-8", errors="replace"), path, first_line=1), repr(str(path))


def _read_lines(path: Path) -> Iterator[tuple[Record, str]]:
    """The dictionary in each line of a file, and how an error calls the place; nothing where there is no file."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    # whatever follows the last newline was being written when the run was killed
    for number, line in enumerate(lines[:-1], start=1):
        if line.strip():
            yield _parsed(line, path, first_line=number), f"line {number} of {str(path)!r}"


def _parsed(text: str, path: Path, first_line: int) -> Record:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise ValueError(
            f"{str(path)!r} is corrupt: line {line} is not JSON ({error.msg}); mend it, or leave this run out"
        ) from error
    if not isinstance(record, dict):
        raise ValueError(
            f"{str(path)!r} is corrupt: line {first_line} holds {type(record).__name__}, not a dictionary; mend it, or "
            "leave this run out"
        )
    return record


def _number(record: Record, key: str, where: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(record, key, where, "a number")
    return float(value)


def _whole(record: Record, key: str, where: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(record, key, where, "a whole number")
    return value


def _text(record: Record, key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise _wrong(record, key, where, "a text")
    return value


def _mapping(record: Record, key: str, where: str) -> Record:
    value = record.get(key)
    if not isinstance(value, dict):
        raise _wrong(record, key, where, "a dictionary")
    return value


def _numbers(record: Record, key: str, where: str) -> dict[str, float]:
    inner = _mapping(record, key, where)
    return {name: value for name in inner if (value := _number(inner, name, where)) is not None}


def _wrong(record: Record, key: str, where: str, wanted: str) -> ValueError:
    given = f"{key!r} is {record[key]!r}" if key in record else f"{key!r} is missing"
    return ValueError(f"in {where}, {given}, where {wanted} is wanted: mend it, or leave this run out")
