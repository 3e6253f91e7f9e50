"""The blocks that surgery puts in the place of a linear operator.

    CSLA      Y  =  sum_b s_b * (X * W_b)  +  b                 s_b constant; written out, to check against
    search    Y  =  X * ( sum_b embed_b(s_b * W_b) )  +  b      s_b trained; merged first, at the cost of one operator

Both are the same function of s_b and W_b. A CSLA block pads once, with the operator's own padding and mode, and crops
for each branch, so that every branch sees the borders that the operator's taps see.
"""

import copy
from collections.abc import Mapping
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.algebra.branches import Placement
from repopt.algebra.csla import Block
from repopt.algebra.operators import LinearOperator

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_FULL = "_is_full_backward_hook"
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    _FULL,
)


class LinearAdditionBlock(nn.Module):
    """Branches of one kernel and one scale each, added up, in the place of an operator.

    Args:
        operator: the module that imagines the block; its bias, hooks and training flag are the block's, and what it
            says of its shape (`stride`, `out_channels`, ...) the block says too.
        block: its branches.
        kernels: their kernels.
    """

    def __init__(self, operator: LinearOperator, block: Block, kernels: Mapping[str, Tensor]) -> None:
        super().__init__()
        weight = operator.weight
        self.block = block
        self.operator_name = ""
        for name in operator.__constants__:
            setattr(self, name, getattr(operator, name))
        self._plain = (_without_parameters(operator),)  # in a tuple: not a submodule
        self.kernels = nn.ParameterDict({branch: self._parameter(kernels[branch], weight) for branch in block.branches})
        self.bias = operator.bias
        self.train(operator.training)
        _share_hooks(self, operator)

    def branch_scales(self) -> dict[str, Tensor]:
        """The branches' scales; a branch without one has the scale 1."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The equivalent kernel: what the plain operator calls its weight."""
        return csla.equivalent_kernel(self.block, self.branch_scales(), dict(self.kernels.items()))

    @torch.no_grad()
    def merged(self) -> LinearOperator:
        """The plain operator with the equivalent kernel."""
        plain = copy.deepcopy(self._plain[0])
        trained = any(kernel.requires_grad for kernel in self.kernels.values())
        plain.weight = nn.Parameter(self.weight, requires_grad=trained)
        plain.bias = self.bias
        plain.train(self.training)
        _share_hooks(plain, self)
        return plain

    def extra_repr(self) -> str:
        plain = self._plain[0].extra_repr().replace(", bias=False", "")  # the template has no parameters at all
        return f"{plain}, bias={self.bias is not None}, branches=({', '.join(self.block.branches)})"

    def _parameter(self, tensor: Tensor, weight: Tensor) -> nn.Parameter:
        own = tensor.detach().to(weight, copy=True)
        if own.ndim == weight.ndim:
            own = own.contiguous(memory_format=_memory_format_of(weight))
        return nn.Parameter(own, requires_grad=weight.requires_grad)


class CSLABlock(LinearAdditionBlock):
    """A Constant-Scale Linear Addition block, written out: each branch convolves on its own.

    Args:
        operator: the module that imagines the block.
        block: its branches.
        constants: their scales.
        kernels: their kernels.
    """

    def __init__(
        self, operator: LinearOperator, block: Block, constants: Mapping[str, Tensor], kernels: Mapping[str, Tensor]
    ) -> None:
        super().__init__(operator, block, kernels)
        for branch in block.branches:
            self.register_buffer(f"scale_{branch}", constants[branch].to(operator.weight, copy=True))

    def branch_scales(self) -> dict[str, Tensor]:
        return {branch: self.get_buffer(f"scale_{branch}") for branch in self.block.branches}

    def forward(self, x: Tensor) -> Tensor:
        padded, scales = _pad(x, self.block), self.branch_scales()
        outputs = (
            _over_outputs(scales[branch], self.block) * _apply(placement, self.kernels[branch], padded)
            for branch, placement in self.block.branches.items()
        )
        y = reduce(torch.add, outputs)
        return y if self.bias is None else y + _over_outputs(self.bias, self.block)


class SearchBlock(LinearAdditionBlock):
    """A Hyper-Search block: trained scales, and an identity whose numbers, one per channel, are trained themselves.

    Args:
        operator: the module that imagines the block.
        block: its branches.
        scales: where the scales start, for every branch but the identity.
        kernels: where the kernels start.
    """

    def __init__(
        self, operator: LinearOperator, block: Block, scales: Mapping[str, Tensor], kernels: Mapping[str, Tensor]
    ) -> None:
        super().__init__(operator, block, kernels)
        channels = (block.operator.out_channels,)
        self.scales = nn.ParameterDict(
            {
                branch: self._parameter(scales[branch].expand(channels), operator.weight)
                for branch, placement in block.branches.items()
                if not placement.is_identity
            }
        )

    def branch_scales(self) -> dict[str, Tensor]:
        return dict(self.scales.items())

    def searched(self) -> dict[str, Tensor]:
        """What the search found, by branch: the scales, and an identity's own numbers."""
        identities = {name: self.kernels[name] for name, placed in self.block.branches.items() if placed.is_identity}
        found = {**self.branch_scales(), **identities}
        return {branch: found[branch].detach() for branch in self.block.branches}

    @torch.no_grad()
    def take_(self, searched: Mapping[str, Tensor]) -> None:
        """Writes what `searched` gave into the block."""
        for branch, numbers in searched.items():
            (self.scales if branch in self.scales else self.kernels)[branch].copy_(numbers)

    def forward(self, x: Tensor) -> Tensor:
        operator = self._plain[0]
        if isinstance(operator, nn.Linear):
            return F.linear(x, self.weight, self.bias)
        y: Tensor = operator._conv_forward(x, self.weight, self.bias)
        return y


def _memory_format_of(weight: Tensor) -> torch.memory_format:
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if weight.ndim == dims and not weight.is_contiguous() and weight.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format


def _without_parameters(operator: LinearOperator) -> LinearOperator:
    plain = copy.copy(operator)
    plain._parameters = dict.fromkeys(operator._parameters)
    for name in _HOOKS:  # the block has them; here they would be copied with whatever they hold
        setattr(plain, name, type(getattr(operator, name))() if name != _FULL else None)
    return plain


def _share_hooks(new: nn.Module, old: nn.Module) -> None:
    """Lets a module call the hooks of the one whose place it takes; handles of these hooks stay valid."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))


def _pad(x: Tensor, block: Block) -> Tensor:
    operator = block.operator
    sizes = [size for pair in reversed(operator.padding) for size in pair]
    if not any(sizes):
        return x
    return F.pad(x, sizes, mode="constant" if operator.padding_mode == "zeros" else operator.padding_mode)


def _apply(placement: Placement, kernel: Tensor, padded: Tensor) -> Tensor:
    operator = placement.operator
    if operator.dims == 0:
        return padded * kernel if placement.is_identity else F.linear(padded, kernel)
    cropped = padded
    for dim, (margin, dilation) in enumerate(zip(placement.margin, operator.dilation, strict=True)):
        axis = dim - operator.dims
        cropped = cropped.narrow(axis, margin * dilation, padded.shape[axis] - 2 * margin * dilation)
    steps = tuple(own * whole for own, whole in zip(placement.dilation, operator.dilation, strict=True))
    return _CONVOLVE[operator.dims](
        cropped, kernel.view(placement.conv_shape), None, operator.stride, 0, steps, placement.groups
    )


def _over_outputs(values: Tensor, block: Block) -> Tensor:
    """A scalar, or one number per output channel, reshaped to multiply or shift the outputs."""
    return values if values.ndim == 0 else values.reshape(-1, *(1,) * block.operator.dims)
