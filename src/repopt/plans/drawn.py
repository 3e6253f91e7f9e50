"""Whether a weight is as torch draws it.

    W  ~  U(-b, b),    b = 1 / sqrt(fan in)

A trained weight, or one of another initialization, is not: it reaches beyond b, or does not come near it, or its
standard deviation is not b / sqrt(3). The fewer numbers it has, the further they may lie from that.
"""

import math

import torch
from torch import Tensor


@torch.no_grad()
def as_torch_draws(weight: Tensor) -> bool:
    """Whether a weight is spread so; rows of it, where it is sharded."""
    count = weight.numel()
    parts = weight.float() * math.sqrt(math.prod(weight.shape[1:]))
    largest, deviation = float(parts.abs().max()), math.sqrt(3 * float(parts.square().mean()))
    return 0.98 - 20 / count < largest < 1.01 and abs(deviation - 1) <= max(0.05, 3 / math.sqrt(count))
