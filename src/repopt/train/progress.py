"""What a person sees of a run: bars in a terminal, a line an epoch elsewhere, nothing where quiet."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class RunProgress:
    """Shows epochs, what remains, images a second, loss and accuracy.

    Args:
        title: what is trained.
        epochs: how many.
        done: how many were done before.
        steps: a training epoch's.
        quiet: show nothing.
        console: where to; standard error unless given.
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
        """Says what an epoch came to."""
        figures = f"loss {record['train_loss']:.3f}  {record['images_per_second']:,.0f} images/s"
        if "val_accuracy" in record:
            figures += f"  accuracy {record['val_accuracy']:.2f}"
        self._bars.update(self._task, completed=record["epoch"] * self._steps, figures=figures)
        if not self._quiet and not self._console.is_terminal:
            self._console.print(f"{self._title}: epoch {record['epoch']}/{self._epochs}  {figures}", soft_wrap=True)
