"""The addresses of many tensors, on the device, for a kernel that works on all of them in one launch.

A table is uploaded only when one of its words changes, into fresh memory: what an earlier launch, or a captured CUDA
graph, still reads is never written to. It goes through pinned memory, so that the host does not wait. A graph reads
that again at every replay, so there it is kept.
"""

import torch
from torch import Tensor

from repopt.device import is_capturing

_SPARES = 4  # not every torch can make pinned memory while a graph is captured: it is made before


class WordTable:
    """Words of 64 bits: addresses, 0 for a tensor that is left out, and the bits of other numbers."""

    def __init__(self, device: torch.device) -> None:
        self._words: list[int] = []
        self._table = torch.empty(0, dtype=torch.int64, device=device)
        self._spares: list[Tensor] = []
        self._captured: list[Tensor] = []

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads one of its tables."""
        return bool(self._captured)

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def of(self, words: list[int]) -> Tensor:
        """The table of these words, on the device: another tensor when a word has changed."""
        capturing = is_capturing(self._table)
        if words == self._words:
            if capturing:
                self._captured.append(self._table)
            return self._table
        table = torch.empty(len(words), dtype=torch.int64, device=self._table.device)
        if capturing:  # filled when the graph is replayed, not now: no eager step may use it
            pinned = self._spare(len(words)).copy_(torch.tensor(words, device="cpu"))
            self._captured += [pinned, table]
            return table.copy_(pinned, non_blocking=True)
        self._table = table.copy_(torch.tensor(words, device="cpu", pin_memory=table.is_cuda), non_blocking=True)
        self._words = words
        if table.is_cuda and not (self._spares and len(self._spares[0]) == len(words)):
            self._spares = [_pinned(len(words)) for _ in range(_SPARES)]
        return table

    def _spare(self, size: int) -> Tensor:
        return self._spares.pop() if self._spares and len(self._spares[0]) == size else _pinned(size)


def _pinned(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=True)


def are_aligned(addresses: list[int]) -> bool:
    """Whether a kernel may read 16 bytes at once at all of them."""
    return not any(address % 16 for address in addresses)
