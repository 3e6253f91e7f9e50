"""What a person sees of a run: where its time goes, a bar or a line per epoch, and TensorBoard's curves."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@dataclass
class Clock:
    """Where the time went, in seconds."""

    data: float = 0.0
    compile: float = 0.0
    train: float = 0.0
    eval: float = 0.0
    save: float = 0.0

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setattr(self, what, getattr(self, what) + time.perf_counter() - start)


class RunProgress:
    """Shows epochs, the time left, images per second, loss and accuracy.

    Args:
        title: what is trained.
        epochs: how many in all.
        done: how many of them were trained before.
        steps: of an epoch.
        quiet: show nothing.
        console: where to show it; standard error unless given.
    """

    def __init__(
        self, title: str, *, epochs: int, done: int, steps: int, quiet: bool = False, console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet, self._title, self._epochs, self._steps = quiet, title, epochs, steps
        self._last_refresh = 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bars.add_task(title, total=epochs * steps, completed=done * steps, figures="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def step(self, number: int) -> None:
        """Counts a step; the bar moves a few times a second."""
        now = time.monotonic()
        if now - self._last_refresh > 0.2:
            self._last_refresh = now
            self._bars.update(self._task, completed=number)

    def epoch(self, record: dict[str, Any]) -> None:
        """Shows the figures of an epoch."""
        figures = f"loss {record['train_loss']:.3f}  {record['images_per_second']:,.0f} images/s"
        if "val_accuracy" in record:
            figures += f"  accuracy {record['val_accuracy']:.2f}"
        self._bars.update(self._task, completed=record["epoch"] * self._steps, figures=figures)
        if not self._quiet and not self._console.is_terminal:
            self._console.print(f"{self._title}: epoch {record['epoch']}/{self._epochs}  {figures}", soft_wrap=True)


def scalar_writer(folder: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """A function that writes an epoch's figures for TensorBoard; without TensorBoard, or a folder, it does nothing."""
    writers: list[Any] = []  # filled at the first record: a run that never starts leaves nothing behind

    def write(record: Mapping[str, Any]) -> None:
        if folder is None:
            return
        if not writers:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            writers.append(SummaryWriter(str(folder / "tensorboard")))
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                writers[0].add_scalar(name, value, record["epoch"])
        writers[0].flush()

    return write
