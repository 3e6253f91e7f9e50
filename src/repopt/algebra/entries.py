"""A branch's entries in an operator-shaped tensor, or in those rows of it that one rank holds.

A `Part` pairs these entries with what belongs to them, a scale or a power of it, in the shape that multiplies them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repopt.algebra.branches import Block, Placement


@dataclass(frozen=True, kw_only=True)
class Part:
    """The entries of one branch.

    Attributes:
        placement: the branch's.
        values: what belongs to the entries, shaped to multiply `read`.
        index: flat positions of the entries, where the rows of a shard cut through the branch's groups so that no view
            holds them.
    """

    placement: Placement
    values: Tensor
    index: Tensor | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """The entries; a view that can be written to, unless there is an index."""
        if self.index is not None:
            return tensor.take(self.index)
        return tensor[self.placement.taps] if self.placement.fills_groups else self.placement.view(tensor)

    def add_(self, tensor: Tensor, summand: Tensor) -> None:
        """Adds to the entries."""
        if self.index is not None:
            tensor.put_(self.index, summand, accumulate=True)
        else:
            self.read(tensor).add_(summand)


def parts_of(block: Block, values: Mapping[str, Tensor], like: Tensor, rows: range | None = None) -> list[Part]:
    """The parts of a block.

    Args:
        block: the block.
        values: what belongs to each branch, a number or one a row of the whole kernel.
        like: device and dtype of the values.
        rows: the rows held here; all of them unless given.
    """
    return [_part(placement, values[branch].to(like), rows) for branch, placement in block.branches.items()]


def sum_over(parts: Sequence[Part], like: Tensor, of_branch: Callable[[Part], Tensor]) -> Tensor:
    """sum_b embed_b(of_branch(b)), in a new tensor."""
    covering = next((part for part in parts if part.placement.covers), None)
    total = torch.zeros_like(like) if covering is None else of_branch(covering)
    for part in parts:
        if part is not covering:
            part.add_(total, of_branch(part))
    return total


def _part(placement: Placement, values: Tensor, rows: range | None) -> Part:
    if placement.fills_groups:
        return Part(placement=placement, values=_over_rows(values, placement, rows))
    if rows is None:
        return Part(placement=placement, values=values if values.ndim == 0 else placement.fold(values))
    index = _local_index(placement, rows).to(values.device)
    if values.ndim == 1:
        row_size = torch.Size(placement.operator.kernel_shape[1:]).numel()
        values = values[rows.start + index // row_size]
    return Part(placement=placement, values=values, index=index)


def _over_rows(values: Tensor, placement: Placement, rows: range | None) -> Tensor:
    if values.ndim == 0:
        return values
    held = values if rows is None else values[rows.start : rows.stop]
    return held.view(-1, *(1,) * (1 + placement.operator.dims))


def _local_index(placement: Placement, rows: range) -> Tensor:
    shape = placement.operator.kernel_shape
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    row_size = torch.Size(shape[1:]).numel()
    entries = placement.view(numbers).flatten() - rows.start * row_size
    return entries[(entries >= 0) & (entries < len(rows) * row_size)]
