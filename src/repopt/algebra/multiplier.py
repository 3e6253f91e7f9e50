"""The Grad Mult, kept structured.

    M  =  sum_b embed_b(|s_b|^(1+k))                                                      Rule of Iteration (Eq. 3)

k is the degree of the update rule in the gradient: 1 for SGD, 0 for rules that look at the gradient's sign. Branches
that fill the operator's groups fold into one tensor over output channels and taps, (O, 1, kh, kw); an identity or a
branch of finer groups is a block diagonal on top. M at full size is made only when asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repopt.algebra.branches import Entries, entries_of
from repopt.algebra.csla import Block


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The Grad Mult of one operator, or of the rows of it that this rank holds.

    Attributes:
        shape: of the kernel held here.
        taps: what the branches that fill the operator's groups contribute, (rows or 1, 1, *taps).
        diagonals: what every other branch contributes.
    """

    shape: tuple[int, ...]
    taps: Tensor
    diagonals: tuple[Entries, ...]

    def dense(self) -> Tensor:
        """M at the full size of the kernel."""
        dense = self.taps.expand(self.shape).clone()
        for entries in self.diagonals:
            entries.add_(dense, entries.values.expand_as(entries.read(dense)))
        return dense

    def squared_norm(self, grad: Tensor) -> Tensor:
        """<g, M g>: with degree 1, the squared norm of the gradients of the imagined block's kernels."""
        dtype = self.taps.dtype
        columns: Tensor = torch.linalg.vector_norm(grad, dim=1, keepdim=True, dtype=dtype)
        total = (self.taps * columns.square()).sum()
        for entries in self.diagonals:
            total = total + (entries.values * entries.read(grad).to(dtype).square()).sum()
        return total

    @property
    def nbytes(self) -> int:
        return self.taps.nbytes + sum(entries.nbytes for entries in self.diagonals)


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
    branches = entries_of(block.branches, powers, like.double(), rows)
    filling = [entries for entries in branches if entries.placement.fills_groups]
    shape = (block.operator.out_channels if rows is None else len(rows), *block.operator.kernel_shape[1:])
    alike = all(entries.values.ndim == 0 for entries in filling)
    taps = torch.zeros((1 if alike else shape[0], 1, *shape[2:]), dtype=torch.float64, device=device)
    for entries in filling:
        entries.add_(taps, entries.values)
    return Multiplier(
        shape=shape,
        taps=taps.to(dtype),
        diagonals=tuple(
            replace(entries, values=entries.values.to(dtype))
            for entries in branches
            if not entries.placement.fills_groups
        ),
    )
