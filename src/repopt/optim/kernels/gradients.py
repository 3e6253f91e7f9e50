"""Gradients of many tensors that are there only while a step is taken.

Making a view of shared memory for each of them takes longer than to launch all that is done with them. So the views are
made once, and the memory below them is given back after each step.
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

_UNIT = 64  # entries: every gradient starts at a multiple of so many, and so of 16 bytes


class PassingGradients:
    """The gradients of some parameters, each laid out as the parameter, in memory that all share.

    Attributes:
        places: where each gradient begins.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params
        self.places: list[int] = []
        self._size = 0
        for param in params:
            self.places.append(self._size)
            self._size += -(-param.numel() // _UNIT) * _UNIT
        self._flat: Tensor | None = None
        self._views: list[Tensor] = []
        self._unheld: list[int] = []

    def memory(self) -> Tensor:
        """Memory that nobody else reads, until `release`."""
        if self._flat is None or self._flat.untyped_storage().nbytes():
            # The first step, or an evaluation within a step whose rule may keep the last one's gradients.
            self._flat = self._params[0].detach().new_empty(self._size)
            self._views = [
                self._flat.as_strided(param.shape, param.stride(), place)
                for param, place in zip(self._params, self.places, strict=True)
            ]
            self._unheld = self._holders()
        else:
            self._flat.untyped_storage().resize_(self._size * self._flat.itemsize)
        return self._flat

    def give(self) -> None:
        """Gives each parameter its gradient."""
        for param, view in zip(self._params, self._views, strict=True):
            param.grad = view

    def release(self) -> None:
        """Takes the gradients from the parameters; memory that the rule kept is left to it."""
        for param in self._params:
            param.grad = None
        if self._flat is not None and self._holders() == self._unheld:
            self._flat.untyped_storage().resize_(0)
        else:
            self._flat, self._views = None, []

    def _holders(self) -> list[int]:
        """How many hold each gradient, or a view of all of them."""
        assert self._flat is not None
        views = torch._C._storage_Use_Count(self._flat.untyped_storage()._cdata)
        return [views, *map(sys.getrefcount, self._views)]
