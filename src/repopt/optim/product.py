"""The product M * g in torch's own operations, in new memory."""

import math

import torch
from torch import Tensor

from repopt.algebra.multiplier import Multiplier

# Multiplying a contiguous kernel by (O, 1, 3, 3) runs inner loops of 9 on a CPU. A tile of this many input channels
# makes them long enough to vectorize.
_TILE_CHANNELS = 16


def product(grad: Tensor, multiplier: Multiplier) -> Tensor:
    """M * g, in the layout of the gradient."""
    out = torch.empty_like(grad)
    taps = multiplier.taps
    tile = _tile(grad)
    if tile == 1:
        torch.mul(grad, taps, out=out)
    else:
        rows, length = taps.shape[0], tile * taps[0].numel()
        tiled = taps.view(rows, 1, -1).expand(-1, tile, -1).reshape(rows, 1, length)
        shape = grad.shape[0], -1, length
        torch.mul(grad.view(shape), tiled, out=out.view(shape))
    for entries in multiplier.diagonals:
        entries.add_(out, (entries.read(grad) * entries.values).to(out.dtype))
    return out


def _tile(grad: Tensor) -> int:
    """How many input channels to multiply at once; 1 where that is no faster."""
    if not grad.is_cpu or not grad.numel() or not grad.is_contiguous():
        return 1
    _, channels, *taps = grad.shape
    if math.prod(taps) == 1:
        return 1
    return channels if channels <= _TILE_CHANNELS else math.gcd(channels, _TILE_CHANNELS)
