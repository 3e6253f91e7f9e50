"""What a run shows: where its time goes, a bar or lines, TensorBoard's curves."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from repopt.verification.waiting import BETWEEN_LINES, REFRESH, Pace


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

    On a terminal a bar; elsewhere a line every few seconds at most, and one for the last epoch.

    Args:
        title: what is trained.
        epochs: how many in all.
        done: how many of them were trained before.
        steps: of an epoch.
        quiet: show nothing.
        console: where to show it; standard error unless given.
        clock: what tells the time.
    """

    def __init__(
        self,
        title: str,
        *,
        epochs: int,
        done: int,
        steps: int,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet, self._title, self._epochs, self._steps = quiet, title, epochs, steps
        self._done, self._clock, self._began = done, clock, clock()
        self._refresh, self._line = Pace(REFRESH, clock=clock), Pace(BETWEEN_LINES, clock=clock)
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
        if self._refresh.due():
            self._bars.update(self._task, completed=number)

    def epoch(self, record: dict[str, Any]) -> None:
        """Shows the figures of an epoch."""
        figures = f"loss {record['train_loss']:.3f}  {record['images_per_second']:,.0f} images/s"
        if "val_accuracy" in record:
            figures += f"  accuracy {record['val_accuracy']:.2f}"
        self._bars.update(self._task, completed=record["epoch"] * self._steps, figures=figures)
        if self._quiet or self._console.is_terminal:
            return
        if self._line.due() or record["epoch"] == self._epochs:
            line = f"{self._title}: epoch {record['epoch']}/{self._epochs}  {figures}{self._left(record['epoch'])}"
            self._console.print(line, soft_wrap=True)

    def _left(self, epoch: int) -> str:
        """The time that the other epochs take if they are like those so far."""
        each = (self._clock() - self._began) / max(epoch - self._done, 1)
        left = timedelta(seconds=round(each * (self._epochs - epoch)))
        return f"  {left} left" if left else ""


class Scalars:
    """Writes an epoch's figures for TensorBoard; without TensorBoard, or a folder, it does nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: Any = None  # opened at the first record: a run that never starts leaves nothing behind

    def write(self, record: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self._writer = SummaryWriter(str(self._folder / "tensorboard"))
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Ends the writer's thread."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
