"""Between a run and a person: where its time goes, a bar or lines, TensorBoard's curves, signals to stop.

On SIGTERM, SIGINT, SIGHUP and SIGUSR1 the loop finishes its step, writes a last checkpoint, and ends.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from repopt.verification.waiting import BETWEEN_LINES, REFRESH, Pace

_SAME_SIGNAL = 1.0  # seconds within which a second signal counts as a copy of the first


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


class DivergedError(RuntimeError):
    """A loss or weights that are not finite ended the run."""


def diverged(what: str, taken: int, steps: int, lr: float, last_saved: str) -> DivergedError:
    """The error for a run of which something was not finite.

    Args:
        what: the beginning of the sentence.
        taken: the step, counted from 1 over all epochs.
        steps: of an epoch.
        lr: at that step.
        last_saved: the last good checkpoint.
    """
    epoch, step = divmod(taken - 1, steps)
    return DivergedError(
        f"{what} step {step + 1} of epoch {epoch + 1}, where the learning rate was {lr:.4g}: the last good checkpoint "
        f"is {last_saved}; try a lower lr, a longer warm-up, or clip"
    )


class StoppedError(RuntimeError):
    """The run was asked to stop, and has written a last checkpoint.

    Args:
        sentence: the message.
        code: the exit code for a program that this signal ends.
    """

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class LostRankError(RuntimeError):
    """Another process of the training has died or hangs; torch's threads in this one may wait for it, also at exit."""


class StopOnSignal:
    """A context in which the first signal to stop is noted, and a later one does what it would have done before.

    torchrun passes on a signal that the terminal has already sent to all processes, so a second one within a second
    counts as the same. Python hands signals to the main thread alone: in any other, none is noted.
    """

    def __init__(self) -> None:
        self._asked_at = 0.0
        self.asked, self.name, self.code = False, "", 1
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                self._before[number] = signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._asked_at > _SAME_SIGNAL:
            signal.signal(number, self._before[number])  # a command ends with a line
            signal.raise_signal(number)
        if self.asked:
            return
        self._asked_at = time.monotonic()
        self.asked, self.name, self.code = True, signal.Signals(number).name, 128 + number
