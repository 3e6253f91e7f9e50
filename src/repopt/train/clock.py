"""Where a run's time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
