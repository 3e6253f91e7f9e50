"""The Grad Mult, kept structured.

    M  =  sum_b embed_b(|s_b|^(1+k))                                                      Rule of Iteration (Eq. 3)

k is the degree of the update rule in the gradient: 1 for SGD, 0 for rules that look at the gradient's sign. Branches
that fill the operator's groups fold into one tensor over output channels and taps, (O, 1, kh, kw); an identity or a
branch of finer groups is a block diagonal on top. M at full size is made only when asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from repopt.branches import Block, Placement
from repopt.csla import over_channels

# Multiplying a contiguous kernel by (O, 1, 3, 3) runs inner loops of 9 on a CPU; a tile of this many input channels
# makes them long enough to vectorize.
_TILE_CHANNELS = 16


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """The Grad Mult of one operator.

    Attributes:
        taps: what the branches that fill the operator's groups contribute, (O or 1, 1, *taps).
        diagonals: placement and contribution of every other branch, shaped to multiply `placement.view`.
    """

    block: Block
    taps: Tensor
    diagonals: tuple[tuple[Placement, Tensor], ...]

    def dense(self) -> Tensor:
        """M at the full size of the kernel."""
        dense = self.taps.expand(self.block.operator.kernel_shape).clone()
        for placement, contribution in self.diagonals:
            placement.view(dense).add_(contribution)
        return dense

    @property
    def nbytes(self) -> int:
        return self.taps.nbytes + sum(contribution.nbytes for _, contribution in self.diagonals)


def grad_mult(
    block: Block,
    constants: Mapping[str, Tensor],
    *,
    degree: float = 1,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Multiplier:
    """Builds the multiplier of a block from its constants."""
    rows = max(constants[branch].numel() for branch in block.branches)
    taps = torch.zeros((rows, 1, *block.operator.kernel_size), dtype=torch.float64)
    diagonals = []
    for branch, placement in block.branches.items():
        power = over_channels(constants[branch].double().abs().pow(1 + degree), placement)
        if placement.fills_groups:
            taps[placement.taps] += power
        else:
            folded = power if power.ndim == 0 else placement.fold(power)
            diagonals.append((placement, folded.to(device, dtype)))
    return Multiplier(block=block, taps=taps.to(device, dtype), diagonals=tuple(diagonals))


def multiply_(grads: Sequence[Tensor], multipliers: Sequence[Multiplier]) -> None:
    """Multiplies each gradient by its M, in place, without a tensor of its size."""
    views = [
        placement.view(grad) for grad, each in zip(grads, multipliers, strict=True) for placement, _ in each.diagonals
    ]
    contributions = [contribution for each in multipliers for _, contribution in each.diagonals]
    extras = torch._foreach_mul(views, contributions) if views else ()
    for grad, each in zip(grads, multipliers, strict=True):
        _multiply_by_taps_(grad, each.taps)
    if views:
        torch._foreach_add_(views, extras)


def _multiply_by_taps_(grad: Tensor, taps: Tensor) -> None:
    channels, count = grad.shape[1], taps[0].numel()
    tile = next(size for size in range(min(_TILE_CHANNELS, channels), 0, -1) if channels % size == 0)
    if grad.device.type == "cpu" and count > 1 and tile > 1 and grad.is_contiguous():
        tiled = taps.expand(-1, tile, *taps.shape[2:]).reshape(-1, 1, tile * count)
        grad.view(grad.shape[0], channels // tile, tile * count).mul_(tiled)
    else:
        grad.mul_(taps)
