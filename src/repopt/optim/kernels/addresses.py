"""The addresses of many tensors, on the device, for a kernel that works on all of them in one launch.

A table is uploaded only when an address changes. It goes through pinned memory, so that the host does not wait. Each
upload has pinned memory of its own: in an eager step the allocator gives it out again only after the copy is done, and
a captured CUDA graph reads it at every replay, so there it is kept.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from repopt.device import is_capturing

_SPARES = 4  # pinned memory cannot be had while a graph is captured: it is made before


class AddressTable:
    """The addresses of tensors, 0 for one that is left out.

    Attributes:
        aligned: whether all addresses of the last table are multiples of 16 bytes.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.aligned = True
        self._addresses: list[int] = []
        self._table = torch.empty(size, dtype=torch.int64, device=device)
        self._spares: list[Tensor] = []
        self._captured: list[Tensor] = []
        self._fill_spares()

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads one of its tables."""
        return bool(self._captured)

    def of(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The table of these tensors, on the device."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        capturing = is_capturing(self._table)
        if addresses != self._addresses:
            self.aligned = not any(address % 16 for address in addresses)
            host = torch.tensor(addresses, dtype=torch.int64)
            if capturing:  # filled when the graph is replayed, not now: no eager step may use it
                pinned = self._spares.pop() if self._spares else torch.empty_like(host, pin_memory=True)
                table = torch.empty_like(self._table).copy_(pinned.copy_(host), non_blocking=True)
                self._captured += [pinned, table]
                self._addresses = []
                return table
            if any(kept is self._table for kept in self._captured):  # a graph reads it
                self._table = torch.empty_like(self._table)
            self._table.copy_(host.pin_memory() if self._table.is_cuda else host, non_blocking=True)
            self._addresses = addresses
            self._fill_spares()
        elif capturing:
            self._captured.append(self._table)
        return self._table

    def _fill_spares(self) -> None:
        while self._table.is_cuda and len(self._spares) < _SPARES:
            self._spares.append(torch.empty(len(self._table), dtype=torch.int64, pin_memory=True))
