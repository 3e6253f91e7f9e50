"""What a person sees who waits: a bar on a terminal, a line now and then elsewhere, and nothing of what is short."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

REFRESH = 0.2  # seconds between two states of a bar on a terminal
BETWEEN_LINES = 5.0  # seconds between two lines of progress off a terminal
_BAR = 30  # characters


class Pace:
    """Says when the next sign of progress is due.

    Args:
        every: seconds from one sign to the next.
        first: seconds to the first one.
        clock: what tells the time.
    """

    def __init__(self, every: float, first: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._next = clock() + first

    def due(self) -> bool:
        """Whether it is time; the wait for the next sign starts then."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._every
        return True


def paced(
    say: Callable[[str], None], out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Callable[[str], None]:
    """`say` for lines of progress: off a terminal those that come too soon after another are left out.

    Args:
        say: prints a line.
        out: where it prints; standard output unless given.
        clock: what tells the time.
    """
    pace = Pace(0.0 if (out or sys.stdout).isatty() else BETWEEN_LINES, clock=clock)

    def say_if_due(line: str) -> None:
        if pace.due():
            say(line)

    return say_if_due


@contextmanager
def counting(
    title: str, total: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """Yields a function that counts one of `total`; what there is to see goes to standard error, or to `out`."""
    out = sys.stderr if out is None else out
    is_terminal, start, done = out.isatty(), clock(), 0
    pace = Pace(REFRESH, first=2, clock=clock) if is_terminal else Pace(30, first=30, clock=clock)
    end = "\r\x1b[K" if is_terminal else ""  # removes the bar

    def advance() -> None:
        nonlocal done
        done += 1
        if not pace.due():
            return
        text = f"{title}: {done} of {total}, {(clock() - start) / done * (total - done):.0f} s left"
        bar = f"{'#' * (_BAR * done // total):.<{_BAR}} " if is_terminal else ""
        print(f"{end}{bar}{text}", end="" if is_terminal else "\n", file=out, flush=True)

    try:
        yield advance
    finally:
        print(end, end="", file=out, flush=True)
