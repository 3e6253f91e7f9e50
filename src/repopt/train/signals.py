"""SIGTERM and SIGINT: the loop finishes its step, writes a last checkpoint, and ends."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_SAME_SIGNAL = 1.0  # seconds within which a second signal counts as a copy of the first


class StoppedError(RuntimeError):
    """The run was asked to stop, and has written a last checkpoint.

    Args:
        sentence: the message.
        code: the exit code for a program that this signal ends.
    """

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class StopOnSignal:
    """A context in which the first SIGTERM or SIGINT is noted, and a later one kills the process.

    torchrun passes on a signal that the terminal has already sent to all processes, so a second one within a second
    counts as the same.
    """

    def __init__(self) -> None:
        self._asked_at = 0.0
        self.asked, self.name, self.code = False, "", 1
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and time.monotonic() - self._asked_at > _SAME_SIGNAL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self.asked:
            return
        self._asked_at = time.monotonic()
        self.asked, self.name, self.code = True, signal.Signals(number).name, 128 + number
