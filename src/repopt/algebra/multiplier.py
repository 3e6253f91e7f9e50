"""The Grad Mult, kept structured.

    M  =  sum_b embed_b(|s_b|^(1+k))                                                      Rule of Iteration (Eq. 3)

k is the degree of the update rule in the gradient: 1 for SGD, 0 for rules that look at the gradient's sign. Branches
that fill the operator's groups fold into one tensor over output channels and taps, (O, 1, kh, kw); an identity or a
branch of finer groups is a block diagonal on top. M at full size is made only when asked for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repopt.algebra.branches import Block
from repopt.algebra.entries import Part, parts_of
from repopt.device import takes_kernels

# Multiplying a contiguous kernel by (O, 1, 3, 3) runs inner loops of 9 on a CPU; a tile of this many input channels
# makes them long enough to vectorize.
_TILE_CHANNELS = 16


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The Grad Mult of one operator, or of the rows of it that this rank holds.

    Attributes:
        shape: of the kernel held here.
        taps: what the branches that fill the operator's groups contribute, (rows or 1, 1, *taps).
        diagonals: what every other branch contributes.
        first: the number of the first row held here.
    """

    shape: tuple[int, ...]
    taps: Tensor
    diagonals: tuple[Part, ...]
    first: int = 0

    def dense(self) -> Tensor:
        """M at the full size of the kernel."""
        dense = self.taps.expand(self.shape).clone()
        for part in self.diagonals:
            part.add_(dense, part.values.expand_as(part.read(dense)))
        return dense

    def squared_norm(self, grad: Tensor) -> Tensor:
        """<g, M g>: with degree 1, the squared norm of the gradients of the imagined block's kernels."""
        dtype = self.taps.dtype
        columns: Tensor = torch.linalg.vector_norm(grad, dim=1, keepdim=True, dtype=dtype)
        total = (self.taps * columns.square()).sum()
        for part in self.diagonals:
            total = total + (part.values * part.read(grad).to(dtype).square()).sum()
        return total

    @property
    def nbytes(self) -> int:
        return self.taps.nbytes + sum(
            part.values.nbytes + (0 if part.index is None else part.index.nbytes) for part in self.diagonals
        )


def grad_mult(
    block: Block,
    constants: Mapping[str, Tensor],
    *,
    degree: float = 1,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    rows: range | None = None,
) -> Multiplier:
    """Builds the multiplier of a block from its constants, for all rows or for those held here."""
    powers = {branch: constants[branch].double().abs().pow(1 + degree) for branch in block.branches}
    like = torch.empty((), dtype=dtype, device=device)
    parts = parts_of(block, powers, like.double(), rows)
    filling = [part for part in parts if part.placement.fills_groups]
    shape = (block.operator.out_channels if rows is None else len(rows), *block.operator.kernel_shape[1:])
    alike = all(part.values.ndim == 0 for part in filling)
    taps = torch.zeros((1 if alike else shape[0], 1, *shape[2:]), dtype=torch.float64, device=device)
    for part in filling:
        part.add_(taps, part.values)
    diagonals = (part for part in parts if not part.placement.fills_groups)
    return Multiplier(
        shape=shape,
        taps=taps.to(dtype),
        diagonals=tuple(
            Part(placement=part.placement, values=part.values.to(dtype), index=part.index) for part in diagonals
        ),
        first=0 if rows is None else rows.start,
    )


def multiply_(grads: Sequence[Tensor], multipliers: Sequence[Multiplier]) -> None:
    """Multiplies each gradient by its M, in place, without a tensor of its size."""
    pairs = [(grad, each) for grad, each in zip(grads, multipliers, strict=True) if not _multiply_at_once_(grad, each)]
    on_top = [(grad, part) for grad, each in pairs for part in each.diagonals]
    reads = [part.read(grad) for grad, part in on_top]
    extras = torch._foreach_mul(reads, [part.values for _, part in on_top]) if reads else ()
    _multiply_by_taps_([(grad, each.taps) for grad, each in pairs])
    views = [(read, extra) for read, extra, (_, part) in zip(reads, extras, on_top, strict=True) if part.index is None]
    if views:
        torch._foreach_add_([read for read, _ in views], [extra for _, extra in views])
    for extra, (grad, part) in zip(extras, on_top, strict=True):
        if part.index is not None:
            part.add_(grad, extra)


def _multiply_at_once_(grad: Tensor, multiplier: Multiplier) -> bool:
    """On a GPU with Triton, the whole product in one pass; False where this was not done."""
    on_top = multiplier.diagonals
    if len(on_top) > 1 or any(not part.placement.is_identity for part in on_top) or not takes_kernels(grad):
        return False
    from repopt.optim.kernels.multiply import multiply_rows_

    return multiply_rows_(grad, multiplier.taps, on_top[0].values if on_top else None, multiplier.first)


def _multiply_by_taps_(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Multiplies gradients by (rows or 1, 1, *taps), through tiles where these are faster."""
    tiles = [_tile(grad) for grad, _ in pairs]
    largest = max((tile * taps.numel() for tile, (_, taps) in zip(tiles, pairs, strict=True) if tile > 1), default=0)
    scratch: dict[torch.dtype, Tensor] = {}  # for all tiles: fresh memory for each would cost more than filling it
    for tile, (grad, taps) in zip(tiles, pairs, strict=True):
        if tile == 1:
            grad.mul_(taps)
            continue
        if taps.dtype not in scratch:
            scratch[taps.dtype] = taps.new_empty(largest)
        rows, length = taps.shape[0], tile * taps[0].numel()
        tiled = scratch[taps.dtype][: rows * length]
        tiled.view(rows, tile, -1).copy_(taps.view(rows, 1, -1))
        grad.view(grad.shape[0], -1, length).mul_(tiled.view(rows, 1, length))


def _tile(grad: Tensor) -> int:
    """How many input channels to multiply at once; 1 where that is no faster."""
    if not grad.is_cpu or not grad.numel() or not grad.is_contiguous():
        return 1
    _, channels, *taps = grad.shape
    if math.prod(taps) == 1:
        return 1
    return channels if channels <= _TILE_CHANNELS else math.gcd(channels, _TILE_CHANNELS)
