"""How large a model is: its parameters, and the multiply-adds of one image."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from repopt.plans.copying import copied


def parameters(model: nn.Module) -> int:
    """How many numbers its parameters hold."""
    return sum(param.numel() for param in model.parameters())


@torch.no_grad()
def multiply_adds(model: nn.Module, size: int = 224) -> int:
    """Multiply-adds of one image in evaluation, by torch's counter on a copy that computes nothing."""
    counted = copied(model, training=False).to("meta")
    with FlopCounterMode(display=False) as counter:
        counted(torch.empty(1, 3, size, size, device="meta"))
    total: int = counter.get_total_flops() // 2
    return total
