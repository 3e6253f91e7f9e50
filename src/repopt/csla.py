"""The imagined CSLA block: one operator with the kernel of many branches, and the Rule of Initialization.

    W'(0)  =  sum_b embed_b(s_b * W_b(0))                                             Rule of Initialization (Eq. 4)

All functions are pure. `constants` are the s_b of one block by branch name, `kernels` its W_b.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from repopt.branches import Block, Identity, Placement

Kernels = dict[str, Tensor]
Convention = Literal["authors", "paper"]
IdentityStart = Literal["searched", "one"]

# convention -> how a branch's own kernel is drawn (DESIGN: "where the paper and the authors' code disagree")
_DRAW: Mapping[str, Callable[[Tensor, torch.Generator | None], Tensor]] = {
    "authors": lambda kernel, generator: nn.init.kaiming_uniform_(kernel, a=math.sqrt(5), generator=generator),
    "paper": lambda kernel, generator: nn.init.kaiming_normal_(kernel, nonlinearity="relu", generator=generator),
}


def equivalent_kernel(block: Block, constants: Mapping[str, Tensor], kernels: Mapping[str, Tensor]) -> Tensor:
    """W' = sum_b embed_b(s_b * W_b)."""
    some = next(iter(kernels.values()))
    weight = some.new_zeros(block.operator.kernel_shape)
    for branch, placement in block.branches.items():
        scaled = over_channels(constants[branch].to(some), placement) * kernels[branch]
        placement.view(weight).add_(placement.fold(scaled))
    return weight


def least_norm_split(block: Block, constants: Mapping[str, Tensor], weight: Tensor, name: str = "") -> Kernels:
    """The smallest kernels whose equivalent kernel is the weight: W_b = s_b * view_b(W' / M), M = sum_b embed_b(s_b^2).

    Raises:
        ValueError: the weight is not zero where no branch, or none but with scale 0, reaches it.
    """
    weight = weight.detach()
    squares = {branch: constants[branch].to(weight).square() for branch in block.branches}
    total = equivalent_kernel(
        block, squares, {branch: weight.new_ones(placed.kernel_shape) for branch, placed in block.branches.items()}
    )
    if ((total == 0) & (weight != 0)).any():
        raise ValueError(
            f"the weight of {name!r} is not zero at entries that no branch with a scale other than 0 reaches, so no "
            "block has this kernel: zero these entries, or give the operator a branch that covers them"
        )
    share = torch.where(total == 0, 0, weight / total)
    kernels = {}
    for branch, placement in block.branches.items():
        kernel = weight.new_empty(placement.kernel_shape)
        placement.fold(kernel).copy_(placement.view(share))
        kernels[branch] = kernel * over_channels(constants[branch].to(weight), placement)
    return kernels


def initial_kernels(
    block: Block,
    like: Tensor,
    *,
    kernel: Convention,
    identity: Mapping[str, Tensor],
    generator: torch.Generator | None = None,
) -> Kernels:
    """Draws a block's own kernels, each on its own shape.

    Args:
        block: the block.
        like: device and dtype of the kernels; the numbers drawn do not depend on its memory format.
        kernel: `authors` (torch's default for a convolution) or `paper` (MSRA).
        identity: where an identity branch starts, by branch; 1 where nothing is said.
        generator: draws on its own device.
    """
    if kernel not in _DRAW:
        raise ValueError(f"kernel is one of {', '.join(map(repr, _DRAW))}, not {kernel!r}")
    device = like.device if generator is None else generator.device
    kernels = {}
    for branch, placement in block.branches.items():
        drawn = torch.empty(placement.kernel_shape, device=device, dtype=torch.promote_types(like.dtype, torch.float32))
        if isinstance(placement.branch, Identity):
            drawn.copy_(over_channels(identity.get(branch, torch.ones(())).to(drawn), placement))
        else:
            _DRAW[kernel](drawn, generator)
        kernels[branch] = drawn.to(like.device)
    return kernels


def over_channels(scale: Tensor, placement: Placement) -> Tensor:
    """A scale, (O,) or a number, shaped to multiply a branch's kernel."""
    return scale if scale.ndim == 0 else scale.reshape(-1, *(1,) * (1 + len(placement.kernel_size)))
