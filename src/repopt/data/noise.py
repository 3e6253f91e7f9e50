"""Noise that is a function of an image's draws: the same whichever rank makes it, and in whichever batch.

A generator would have to be moved to the place of each image. Here a hash takes a row of draws and the place of a pixel
to a uniform number, and the inverse of the normal distribution takes that to a normal one.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 2**32 - 1


def normal_noise(draws: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers.

    Args:
        draws: (B, any), float32, one row per image.
        shape: of an image.

    Returns:
        (B, *shape), float32.
    """
    bits = draws.contiguous().view(torch.int32).long()
    row = _mix_((bits * torch.arange(1, 2 * bits.shape[1], 2, device=draws.device)).sum(1) & _WORD)
    mixed = _mix_(row[:, None] ^ torch.arange(math.prod(shape), device=draws.device))
    uniform = (mixed >> 9).float().add_(0.5).div_(2**22).sub_(1)  # 23 bits, and -1 and 1 are left out
    return uniform.erfinv_().mul_(math.sqrt(2)).view(-1, *shape)


def _mix_(words: Tensor) -> Tensor:
    """Hashes whole numbers of 32 bits; the factors have 31 bits, so that no product overflows."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        words.bitwise_xor_(words >> shift).mul_(factor).bitwise_and_(_WORD)
    return words.bitwise_xor_(words >> 15)
