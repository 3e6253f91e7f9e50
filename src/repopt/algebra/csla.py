"""The CSLA block that an operator imagines: its branches, its equivalent kernel, and the Rule of Initialization.

    W'(0)  =  sum_b embed_b(s_b * W_b(0))                                             Rule of Initialization (Eq. 4)

All functions are pure. `constants` are the s_b of one block by branch name, `kernels` its W_b.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from repopt.algebra.branches import Branch, Identity, Placement, branch_name, place
from repopt.algebra.operators import Operator

Kernels = dict[str, Tensor]
Convention = Literal["authors", "paper"]
IdentityStart = Literal["searched", "one"]

# how a branch's own kernel is drawn; the paper and the authors' code disagree
_DRAW: Mapping[str, Callable[[Tensor, torch.Generator | None], Tensor]] = {
    "authors": lambda kernel, generator: nn.init.kaiming_uniform_(kernel, a=math.sqrt(5), generator=generator),
    "paper": lambda kernel, generator: nn.init.kaiming_normal_(kernel, nonlinearity="relu", generator=generator),
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """The CSLA block that an operator imagines.

    Attributes:
        branches: branch name -> placement, in the order given.
        left_out: what an identity would have needed, where one was asked for and the shape forbids it.
    """

    operator: Operator
    branches: Mapping[str, Placement]
    left_out: str | None = None

    def in_order(self) -> list[str]:
        """The branches in the order in which they are summed: one that is as large as the operator first."""
        return sorted(self.branches, key=lambda branch: not self.branches[branch].is_whole)


def imagine(operator: Operator, branches: Sequence[Branch], name: str = "") -> Block:
    """Places branches in an operator.

    Args:
        operator: the operator.
        branches: the branches the user asked for; an identity is left out where the shape forbids it.
        name: the operator's name, for errors.

    Raises:
        ValueError: a branch does not fit, or none is left.
    """
    placements: dict[str, Placement] = {}
    left_out = None
    for branch in branches:
        if isinstance(branch, Identity) and operator.shape_change is not None:
            left_out = operator.shape_change
            continue
        placement = place(branch, operator, name)
        label = branch_name(placement)
        repeats = sum(known == label or known.startswith(f"{label}_") for known in placements)
        placements[f"{label}_{repeats + 1}" if repeats else label] = placement
    if not placements:
        reason = "none was given" if left_out is None else f"its identity is left out ({left_out})"
        raise ValueError(f"operator {name!r} is left without any branch, since {reason}: add one")
    return Block(operator=operator, branches=placements, left_out=left_out)


def equivalent_kernel(block: Block, constants: Mapping[str, Tensor], kernels: Mapping[str, Tensor]) -> Tensor:
    """W' = sum_b embed_b(s_b * W_b), which can be differentiated by the s_b and W_b.

    Args:
        block: the block.
        constants: a branch without one has the scale 1.
        kernels: the branches' own; W' has its channels last if one of them has.
    """
    weight = None
    for branch in block.in_order():
        placement, kernel, scale = block.branches[branch], kernels[branch], constants.get(branch)
        if weight is None and placement.is_whole:
            weight = kernel * (1 if scale is None else over_channels(scale.to(kernel), placement))
            continue
        if weight is None:
            weight = kernel.new_zeros(block.operator.kernel_shape).contiguous(memory_format=_format_of_any(kernels))
        own = placement.fold(kernel)
        factor = None if scale is None else scale.to(kernel) if scale.ndim == 0 else placement.fold(scale.to(kernel))
        if not placement.fills_groups:  # a compiler makes one kernel of it all, diagonal and cast too
            weight[placement.taps].add_(placement.spread(own if factor is None else own * factor))
        elif factor is None:
            placement.view(weight).add_(own)
        else:
            placement.view(weight).addcmul_(own, factor)
    assert weight is not None
    return weight


@torch.no_grad()
def following(
    block: Block,
    constants: Mapping[str, Tensor],
    kernels: Mapping[str, Tensor],
    weight: Tensor,
    name: str = "",
    merged: Tensor | None = None,
) -> Kernels:
    """Kernels whose equivalent kernel is the weight: these ones, plus the least-norm split of what is missing.

    Args:
        block: the block.
        constants: its scales.
        kernels: its kernels.
        weight: the weight to follow.
        name: the operator's name, for errors.
        merged: the kernels' sum as it was written into the weight, where another arithmetic than ours wrote it.
    """
    check_has_values(weight, name)
    change = weight.detach() - (equivalent_kernel(block, constants, kernels).to(weight) if merged is None else merged)
    if not change.any():
        return dict(kernels)
    missing = least_norm_split(block, constants, change, name)
    return {branch: kernels[branch].detach().to(weight) + missing[branch] for branch in block.branches}


def check_kernels(block: Block, kernels: Mapping[str, Tensor], name: str) -> None:
    """Raises unless there is a real kernel of the right shape for every branch, and for nothing else."""
    if not isinstance(kernels, Mapping):
        raise TypeError(f"the kernels of {name!r} must be a dictionary by branch, not a {type(kernels).__name__}")
    for branch in kernels:
        if branch not in block.branches:
            raise ValueError(f"there is a kernel for branch {branch!r} of {name!r}, which has no such branch")
    for branch, placement in block.branches.items():
        if branch not in kernels:
            raise ValueError(
                f"the kernels lack branch {branch!r} of operator {name!r}: give what plan.init_() returned"
            )
        kernel = kernels[branch]
        if not isinstance(kernel, Tensor) or not kernel.is_floating_point():
            found = str(kernel.dtype) if isinstance(kernel, Tensor) else f"a {type(kernel).__name__}"
            raise TypeError(
                f"the kernel of branch {branch!r} of {name!r} is {found}: it must be a tensor of real numbers"
            )
        if kernel.shape != placement.kernel_shape:
            raise ValueError(
                f"the kernel of branch {branch!r} of {name!r} has shape {tuple(kernel.shape)}: it must be "
                f"{placement.kernel_shape}"
            )


def check_has_values(weight: Tensor, name: str) -> None:
    """Raises for a weight on the meta device."""
    if weight.is_meta:
        raise ValueError(
            f"the weight of {name!r} is on the meta device and has no values: give the model memory and weights first, "
            "with to_empty() and load_state_dict()"
        )


def least_norm_split(block: Block, constants: Mapping[str, Tensor], weight: Tensor, name: str = "") -> Kernels:
    """The smallest kernels whose equivalent kernel is the weight: W_b = s_b * view_b(W' / M), M = sum_b embed_b(s_b^2).

    Raises:
        ValueError: the weight is not zero where no branch, or none but with scale 0, reaches it.
    """
    check_has_values(weight, name)
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
    check_convention(kernel)
    kernels = {}
    for branch, placement in block.branches.items():
        if placement.is_identity:
            own = torch.empty(placement.kernel_shape, device=like.device, dtype=_drawn_dtype(like))
            own.copy_(over_channels(identity.get(branch, torch.ones((), device="cpu")).to(own), placement))
        else:
            own = drawn(placement.kernel_shape, like, kernel, generator).to(like.device)
        kernels[branch] = own
    return kernels


def check_convention(kernel: object) -> None:
    """Raises unless this is a convention for drawing kernels."""
    if kernel not in list(_DRAW):
        raise ValueError(f"kernel is {' or '.join(map(repr, _DRAW))}, not {kernel!r}")


def drawn(
    shape: Sequence[int], like: Tensor, convention: Convention, generator: torch.Generator | None = None
) -> Tensor:
    """A kernel drawn by its shape: in float32 or finer, on the generator's device, or else that of `like`."""
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"generator is a torch.Generator or None, not a {type(generator).__name__}")
    device = like.device if generator is None else generator.device
    kernel = torch.empty(shape, device=device, dtype=_drawn_dtype(like))
    draw_(kernel, convention, generator)
    return kernel


def _drawn_dtype(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


@torch.no_grad()
def draw_(kernel: Tensor, convention: Convention, generator: torch.Generator | None = None) -> None:
    """Draws a kernel by its own shape."""
    check_convention(convention)
    _DRAW[convention](kernel, generator)


def over_channels(scale: Tensor, placement: Placement) -> Tensor:
    """A scale, a scalar or of shape (O,), reshaped to multiply a branch's kernel."""
    return scale if scale.ndim == 0 else scale.view(-1, *(1,) * (len(placement.kernel_shape) - 1))


def memory_format_of(kernel: Tensor) -> torch.memory_format:
    """Channels last where a kernel has them last; contiguous for every other one."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(kernel.ndim, torch.contiguous_format)
    is_last = not kernel.is_contiguous() and kernel.is_contiguous(memory_format=last)
    return last if is_last else torch.contiguous_format


def _format_of_any(kernels: Mapping[str, Tensor]) -> torch.memory_format:
    """Channels last where any kernel has them last; one of a single tap does not tell."""
    formats = (memory_format_of(kernel) for kernel in kernels.values())
    return next((each for each in formats if each != torch.contiguous_format), torch.contiguous_format)
