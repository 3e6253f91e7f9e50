"""Surgery: a plain model into its CSLA twin and back.

    Y  =  sum_b s_b * (X * W_b)  +  b                            the real block, for checking and never for training

Each planned operator is replaced by a block with the branches written out. The block pads once, with the operator's own
padding and mode, and crops for each branch, so that every branch sees the borders that the operator's taps see.
"""

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repopt import csla
from repopt.branches import Block, Placement
from repopt.names import clean_modules
from repopt.operators import LinearOperator
from repopt.plans import Plan, check_plan

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class CSLABlock(nn.Module):
    """A Constant-Scale Linear Addition block: branches of one kernel and one constant scale each.

    Args:
        operator: the module that imagines the block; its bias is the block's.
        block: its branches.
        constants: their scales.
        kernels: their kernels.
    """

    def __init__(
        self, operator: LinearOperator, block: Block, constants: Mapping[str, Tensor], kernels: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        weight = operator.weight
        self.block = block
        self.kernels = nn.ParameterDict(
            {
                branch: nn.Parameter(kernels[branch].detach().to(weight, copy=True), requires_grad=weight.requires_grad)
                for branch in block.branches
            }
        )
        for branch in block.branches:
            self.register_buffer(f"scale_{branch}", constants[branch].to(weight, copy=True))
        self.bias = operator.bias
        self._memory_format = memory_format_of(weight)
        self._plain = (_without_parameters(operator),)  # in a tuple: not a submodule

    def forward(self, x: Tensor) -> Tensor:
        padded = _pad(x, self.block)
        y = sum(self._branch(padded, branch, placement) for branch, placement in self.block.branches.items())
        assert isinstance(y, Tensor)
        return y if self.bias is None else y + _along_channels(self.bias, self.block)

    def equivalent_kernel(self) -> Tensor:
        return csla.equivalent_kernel(self.block, self._constants(), dict(self.kernels.items()))

    def merged(self) -> LinearOperator:
        """The plain operator with the equivalent kernel."""
        plain = copy.deepcopy(self._plain[0])
        trained = any(kernel.requires_grad for kernel in self.kernels.values())
        weight = self.equivalent_kernel().detach().contiguous(memory_format=self._memory_format)
        plain.weight = nn.Parameter(weight, requires_grad=trained)
        plain.bias = self.bias
        plain.train(self.training)
        return plain

    def _constants(self) -> dict[str, Tensor]:
        return {branch: self.get_buffer(f"scale_{branch}") for branch in self.block.branches}

    def _branch(self, padded: Tensor, branch: str, placement: Placement) -> Tensor:
        scale = self.get_buffer(f"scale_{branch}")
        kernel = self.kernels[branch]
        return (scale if scale.ndim == 0 else _along_channels(scale, self.block)) * _apply(placement, kernel, padded)


def csla_model(net: nn.Module, plan: Plan, kernels: Mapping[str, Mapping[str, Tensor]] | None = None) -> nn.Module:
    """A copy of the model with every planned operator written out as its real multi-branch block.

    Args:
        net: the model, or a copy of it; its other parameters are taken over as they are.
        plan: a plan with scales.
        kernels: each block's own kernels, as `plan.init_()` returns them; without them the split of least norm of the
            model's weights. Either way the twin computes what the model computes: what the weights have changed since
            the kernels were drawn is spread over them.

    Raises:
        ValueError: an operator shares its weight with another module, has a forward of its own, or hooks.
    """
    check_plan(plan)
    twin = copy.deepcopy(net)
    modules = plan.on(twin).modules()
    for name, operator in modules.items():
        _check_replaceable(twin, operator, name)
        block, constants = plan.blocks[name], plan.constants(name)
        if kernels is None:
            own: Mapping[str, Tensor] = csla.least_norm_split(block, constants, operator.weight, name)
        else:
            csla.check_kernels(block, kernels.get(name, {}), name)
            own = csla.following(block, constants, kernels[name], operator.weight, name)
        twin = _replaced(twin, operator, CSLABlock(operator, block, constants, own))
    return twin


def merge(model: nn.Module) -> nn.Module:
    """A copy of a CSLA model with every block merged into the plain operator of the equivalent kernel."""
    merged = copy.deepcopy(model)
    blocks = [module for module in merged.modules() if isinstance(module, CSLABlock)]
    if not blocks:
        raise ValueError(f"this {type(model).__name__} holds no block to merge: give a model made by csla_model")
    for block in blocks:
        merged = _replaced(merged, block, block.merged())
    return merged


def csla_blocks(model: nn.Module) -> dict[str, CSLABlock]:
    """The blocks of a CSLA model by operator name."""
    return {name: module for name, module in clean_modules(model).items() if isinstance(module, CSLABlock)}


def _check_replaceable(model: nn.Module, operator: LinearOperator, name: str) -> None:
    """Raises where a block in the operator's place would compute or train something else."""
    for other, module in model.named_modules():
        if module is not operator and any(param is operator.weight for param in module._parameters.values()):
            raise ValueError(
                f"{name!r} shares its weight with {other!r}, and a block would untie them: give it one of its own"
            )
    plain = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear) if isinstance(operator, kind))
    own = [
        verb
        for verb in ("forward", "_conv_forward")
        if getattr(type(operator), verb, None) is not getattr(plain, verb, None)
    ]
    if own or operator._forward_hooks or operator._forward_pre_hooks:
        raise ValueError(
            f"{name!r} is a {type(operator).__name__} with a forward or forward hooks of its own, which a block of "
            "plain branches does not have: leave it out of the plan"
        )


def _replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Puts `new` wherever the model holds `old`; returns the model, which is `new` if the model was `old`."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children would skip a second name
            if child is old:
                setattr(parent, attribute, new)
    return model


def _without_parameters(operator: LinearOperator) -> LinearOperator:
    plain = copy.copy(operator)
    plain._parameters = dict.fromkeys(operator._parameters)
    return plain


def memory_format_of(weight: Tensor) -> torch.memory_format:
    for dims, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if weight.ndim == dims and not weight.is_contiguous() and weight.is_contiguous(memory_format=memory_format):
            return memory_format
    return torch.contiguous_format


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


def _along_channels(values: Tensor, block: Block) -> Tensor:
    return values.reshape(-1, *(1,) * block.operator.dims)
