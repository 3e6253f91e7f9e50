"""Scalars for TensorBoard, where it is installed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Write = Callable[[Mapping[str, Any]], None]


def scalar_writer(folder: Path | None) -> Write:
    """A function that writes the numbers of an epoch's record; without TensorBoard, or a folder, it does nothing."""
    if folder is None:
        return lambda record: None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return lambda record: None
    writers: list[SummaryWriter] = []  # made with the first record: a run that never starts leaves nothing

    def write(record: Mapping[str, Any]) -> None:
        if not writers:
            writers.append(SummaryWriter(str(folder / "tensorboard")))
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                writers[0].add_scalar(name, value, record["epoch"])
        writers[0].flush()

    return write
