"""Why a training ends before its last epoch: a signal, a rank that is lost, figures that are not finite.

On SIGTERM, SIGINT, SIGHUP and SIGUSR1 the loop finishes its step, writes a last checkpoint, and ends.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_SAME_SIGNAL = 1.0  # seconds within which a second signal counts as a copy of the first


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
