"""What a person sees who waits: a bar on a terminal, a line now and then elsewhere, and nothing of what is short."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

_BAR = 30  # characters


@contextmanager
def counting(
    title: str, total: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """Yields a function that counts one of `total`; what there is to see goes to standard error, or to `out`."""
    out = sys.stderr if out is None else out
    is_terminal, start, done = out.isatty(), clock(), 0
    shown_at = start + 2 if is_terminal else start + 30
    end = "\r\x1b[K" if is_terminal else ""  # removes the bar

    def advance() -> None:
        nonlocal done, shown_at
        done += 1
        now = clock()
        if now < shown_at:
            return
        shown_at = now + (0.2 if is_terminal else 30)
        text = f"{title}: {done} of {total}, {(now - start) / done * (total - done):.0f} s left"
        bar = f"{'#' * (_BAR * done // total):.<{_BAR}} " if is_terminal else ""
        print(f"{end}{bar}{text}", end="" if is_terminal else "\n", file=out, flush=True)

    try:
        yield advance
    finally:
        print(end, end="", file=out, flush=True)
