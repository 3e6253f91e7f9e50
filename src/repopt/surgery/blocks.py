"""The blocks that surgery puts in the place of a linear operator.

    CSLA      Y  =  sum_b s_b * (X * W_b)  +  b                 s_b constant; written out, to check against
    search    Y  =  X * ( sum_b embed_b(s_b * W_b) )  +  b      s_b trained; merged first, at the cost of one operator
    branches  Y  =  sum_b BN_b(X * W_b)  +  b                   the real thing: RepVGG's and ACNet's blocks

The first two are the same function of s_b and W_b. The third is so in eval mode, where a norm is a scale and a shift.
Blocks that are written out pad once, with the operator's own padding and mode, and crop for each branch, so that every
branch sees the borders that the operator's taps see.
"""

import copy
import warnings
from collections.abc import Mapping
from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.algebra.branches import Placement
from repopt.algebra.csla import Block
from repopt.algebra.operators import LinearOperator
from repopt.surgery.norms import norm_affine

Norm = bool | Literal["qarepvgg"]

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_NORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
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
        kernels: their kernels, of those that train one.
    """

    def __init__(self, operator: LinearOperator, block: Block, kernels: Mapping[str, Tensor]) -> None:
        super().__init__()
        weight = operator.weight
        self.block = block
        self.operator_name = ""
        for name in operator.__constants__:
            setattr(self, name, getattr(operator, name))
        self._plain = (_without_parameters(operator),)  # in a tuple: not a submodule
        self.kernels = nn.ParameterDict(
            {branch: self._parameter(kernels[branch], weight) for branch in block.branches if branch in kernels}
        )
        self.bias = operator.bias
        self.train(operator.training)
        _share_hooks(self, operator)

    def branch_scales(self) -> dict[str, Tensor]:
        """The branches' scales; a branch without one has the scale 1."""
        raise NotImplementedError

    def branch_kernels(self) -> dict[str, Tensor]:
        """The branches' kernels."""
        return dict(self.kernels.items())

    @property
    def weight(self) -> Tensor:
        """The equivalent kernel: what the plain operator calls its weight."""
        return self.equivalent_kernel()

    def equivalent_kernel(self) -> Tensor:
        return csla.equivalent_kernel(self.block, self.branch_scales(), self.branch_kernels())

    def merged_bias(self) -> Tensor | None:
        """The plain operator's bias."""
        return self.bias

    @property
    def is_trained(self) -> bool:
        """Whether the plain operator's weight is to be trained."""
        return any(param.requires_grad for param in self.parameters() if param is not self.bias)

    @torch.no_grad()
    def merged(self) -> LinearOperator:
        """The plain operator with the equivalent kernel."""
        plain = copy.deepcopy(self._plain[0])
        plain.weight = nn.Parameter(self.equivalent_kernel(), requires_grad=self.is_trained)
        plain.bias = self.merged_bias()
        plain.train(self.training)
        _share_hooks(plain, self)
        return plain

    def extra_repr(self) -> str:
        plain = self._plain[0].extra_repr().replace(", bias=False", "")  # the template has no parameters at all
        return f"{plain}, bias={self.bias is not None}, branches=({', '.join(self.block.branches)})"

    def _parameter(self, tensor: Tensor, weight: Tensor) -> nn.Parameter:
        own = tensor.detach().to(weight, copy=True)
        if own.ndim == weight.ndim:
            own = own.contiguous(memory_format=csla.memory_format_of(weight))
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

    @property
    def is_trained(self) -> bool:
        return any(kernel.requires_grad for kernel in self.kernels.values())  # the scales become constants

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


class BranchBlock(LinearAdditionBlock):
    """Real parallel branches with norms. An identity trains no numbers of its own, only its norm does.

    Args:
        operator: the module whose place the block takes.
        block: its branches.
        kernels: where the kernels start, of every branch but the identity.
        norm: True gives each branch its own norm; `qarepvgg` gives one to the branch that is as large as the operator
            and one to the sum; False gives none.
    """

    ones: Tensor

    def __init__(self, operator: LinearOperator, block: Block, kernels: Mapping[str, Tensor], norm: Norm) -> None:
        super().__init__(operator, block, kernels)
        weight, channels = operator.weight, block.operator.out_channels

        def norm_if(wanted: bool) -> nn.Module:
            kind = _NORMS[block.operator.dims] if wanted else nn.Identity
            return kind(channels, device=weight.device, dtype=weight.dtype).requires_grad_(weight.requires_grad)

        self.norm = norm
        self.norms = nn.ModuleDict(
            {
                branch: norm_if(norm is True or (norm == "qarepvgg" and placement.is_whole))
                for branch, placement in block.branches.items()
            }
        )
        self.norm_after = norm_if(norm == "qarepvgg")
        self.register_buffer("ones", weight.new_ones(channels), persistent=False)
        self.train(operator.training)

    @property
    def weight(self) -> Tensor:
        """The equivalent kernel in eval mode. Whoever reads it, instead of calling the block, misses what norms add."""
        if self.norm:
            lacks = "the norms of its branches" if self.training else "the shifts of its branches' norms"
            warnings.warn(
                f"the weight of {self.operator_name!r} is read, and what is computed with it lacks {lacks}: call the "
                "block, or merge the model first",
                stacklevel=2,
            )
        return self.equivalent_kernel()

    def branch_scales(self) -> dict[str, Tensor]:
        """What the norms multiply each branch with in eval mode."""
        after, _ = self._affine(self.norm_after)
        return {branch: after * self._affine(norm)[0] for branch, norm in self.norms.items()}

    def branch_kernels(self) -> dict[str, Tensor]:
        return {branch: self.kernels.get(branch, self.ones) for branch in self.block.branches}

    def merged_bias(self) -> Tensor | None:
        """The norms' shifts in eval mode, and the operator's bias, if it had one."""
        if not self.norm:
            return self.bias
        after, shift = self._affine(self.norm_after)
        total = after * reduce(torch.add, (self._affine(norm)[1] for norm in self.norms.values())) + shift
        trained = any(param.requires_grad for param in self.parameters())
        return nn.Parameter(total if self.bias is None else total + self.bias, requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        padded = _pad(x, self.block)
        outputs = (
            self._normed(
                self.norms[branch],
                _crop(placement, padded) if placement.is_identity else _apply(placement, self.kernels[branch], padded),
            )
            for branch, placement in self.block.branches.items()
        )
        y = self._normed(self.norm_after, reduce(torch.add, outputs))
        return y if self.bias is None else y + _over_outputs(self.bias, self.block)

    def _normed(self, norm: nn.Module, y: Tensor) -> Tensor:
        """Norms outputs, also those without a batch dimension, and a linear layer's with several."""
        spatial = y.shape[y.ndim - self.block.operator.dims :]
        normed: Tensor = norm(y.reshape(-1, self.block.operator.out_channels, *spatial))
        return normed.reshape(y.shape)

    def _affine(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        return norm_affine(norm, like=self.ones)


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


def _crop(placement: Placement, padded: Tensor) -> Tensor:
    """What a branch sees of the operator's input."""
    operator = placement.operator
    for dim, (margin, dilation) in enumerate(zip(placement.margin, operator.dilation, strict=True)):
        axis = dim - operator.dims
        padded = padded.narrow(axis, margin * dilation, padded.shape[axis] - 2 * margin * dilation)
    return padded


def _apply(placement: Placement, kernel: Tensor, padded: Tensor) -> Tensor:
    operator = placement.operator
    if operator.dims == 0:
        return padded * kernel if placement.is_identity else F.linear(padded, kernel)
    steps = tuple(own * whole for own, whole in zip(placement.dilation, operator.dilation, strict=True))
    return _CONVOLVE[operator.dims](
        _crop(placement, padded), kernel.view(placement.conv_shape), None, operator.stride, 0, steps, placement.groups
    )


def _over_outputs(values: Tensor, block: Block) -> Tensor:
    """A scalar, or one number per output channel, reshaped to multiply or shift the outputs."""
    return values if values.ndim == 0 else values.reshape(-1, *(1,) * block.operator.dims)
