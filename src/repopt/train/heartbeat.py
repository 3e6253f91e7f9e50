"""A rank that stands still is named, however patient the collectives are.

Every rank has a thread that writes a beat where all ranks can read it: a count, and how many collectives the rank has
started. It goes on while the rank computes, compiles or writes.

no beats             the process is stopped, or its machine or network is gone: the others end, and say who it was
fewer collectives    the others wait for a rank that is busy or hangs: the first rank says so, and they wait on
"""

import os
import sys
import threading
from dataclasses import dataclass, field

import torch.distributed as dist

EVERY = 5.0  # seconds between beats
STILL = 90.0  # seconds without a beat, or behind the others


@dataclass
class _Rank:
    """What was last heard of a rank, and how many looks ago."""

    beat: bytes = b""
    silent: int = 0
    collectives: int = 0
    behind: int = 0


@dataclass
class Heartbeat:
    """The beats of this rank and a watch over those of the others, until `stop`.

    Attributes:
        rank: of this process.
        size: how many ranks there are.
    """

    rank: int
    size: int
    _stopped: threading.Event = field(default_factory=threading.Event)
    _answered: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        # a connection of its own: on the process group's, a collective that waits would hold the beats up
        self._at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = dist.TCPStore(*self._at, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
        self._looks = max(2, round(STILL / EVERY))
        for work in (self._beat, self._watch_store):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        """Writes beats and reads those of the others, until the store is gone with the process that keeps it."""
        ranks, count = [_Rank() for _ in range(self.size)], 0
        try:
            while not self._stopped.wait(EVERY if count else 0):
                count += 1
                self._store.set(f"repopt/{self.rank}", f"{count} {_collectives()}")
                self._look(ranks, self._read())
                self._answered.set()
        except RuntimeError:  # a rank that ends so is missed by the collectives at once
            self._stopped.set()

    def _read(self) -> list[bytes]:
        keys = [f"repopt/{rank}" for rank in range(self.size)]
        if self._store.check(keys):
            return self._store.multi_get(keys)
        return [self._store.get(key) if self._store.check([key]) else b"" for key in keys]

    def _look(self, ranks: list[_Rank], beats: list[bytes]) -> None:
        """Counts looks, not seconds: a process that was stopped itself has missed the beats of all others."""
        for rank, beat in zip(ranks, beats, strict=True):
            rank.silent = rank.silent + 1 if beat == rank.beat else 0
            rank.beat, before = beat, rank.collectives
            rank.collectives = int(beat.split()[1]) if beat else 0
            rank.behind = rank.behind + 1 if rank.collectives == before else 0
        silent = [number for number, rank in enumerate(ranks) if rank.silent >= self._looks]
        if silent:
            self._end(f"{_named(silent)} given no sign of life for {STILL:.0f} s: {_STOPPED}")
        started = [rank.collectives for rank in ranks]
        waiting = min(rank.behind for rank in ranks)
        if self.rank == 0 and waiting == self._looks and min(started) < max(started):
            late = [number for number, rank in enumerate(ranks) if rank.collectives == min(started)]
            _say(f"{_named(late)} kept the others waiting for {STILL:.0f} s: it is busy, or its program hangs")

    def _watch_store(self) -> None:
        """Names the first rank when its store answers no more, which the thread that asks it would not notice."""
        looks = 0
        while not self._stopped.is_set():
            looks = 0 if self._answered.wait(EVERY) else looks + 1
            self._answered.clear()
            if looks >= self._looks:
                where = ":".join(map(str, self._at))
                self._end(f"rank 0 has given no answer at {where} for {STILL:.0f} s: {_STOPPED}")

    def _end(self, sentence: str) -> None:
        """Ends this process at once: its main thread waits inside a collective, which nothing interrupts."""
        _say(sentence)
        if self.rank == 0:
            self._stopped.wait(2 * EVERY)  # the others read from its store that they have to end
        os._exit(2)


_STOPPED = "its process is stopped, or its machine or network is gone; end it, and start again with --resume"


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"


def _say(sentence: str) -> None:
    print(f"repopt: {sentence}", file=sys.stderr, flush=True)


def _collectives() -> int:
    """How many collectives this process has started."""
    try:
        group = dist.group.WORLD
        return 0 if group is None else int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except RuntimeError:  # before the first one
        return 0
