"""The linear operator that the optimizer re-parameterizes: Y = X * W' + b.

An `Operator` is what the algebra needs to know about a module: the shape of its kernel W', its groups, and whether it
keeps the shape of its input (only then can a block around it have an identity branch).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

LinearOperator = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A linear operator's geometry; a fully connected layer is a convolution over zero dimensions."""

    out_channels: int
    in_channels: int
    groups: int = 1
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    padding_mode: str = "zeros"

    @property
    def dims(self) -> int:
        return len(self.kernel_size)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    @property
    def shape_change(self) -> str | None:
        """How the output's shape differs from the input's, in a few words; None where it does not."""
        if self.in_channels != self.out_channels:
            return f"{self.in_channels} -> {self.out_channels} channels"
        if any(stride != 1 for stride in self.stride):
            return f"stride {spell(self.stride)}"
        kept = [
            before + after == dilation * (taps - 1)
            for (before, after), dilation, taps in zip(self.padding, self.dilation, self.kernel_size, strict=True)
        ]
        if not all(kept):
            return f"padding {spell([before for before, _ in self.padding])}"
        return None


def operator_of(module: LinearOperator) -> Operator:
    """Describes a convolution or a fully connected layer."""
    if isinstance(module, nn.Linear):
        return Operator(out_channels=module.out_features, in_channels=module.in_features)
    return Operator(
        out_channels=module.out_channels,
        in_channels=module.in_channels,
        groups=module.groups,
        kernel_size=tuple(module.kernel_size),
        stride=tuple(module.stride),
        dilation=tuple(module.dilation),
        padding=_padding(module),
        padding_mode=module.padding_mode,
    )


def is_linear_operator(module: nn.Module) -> TypeGuard[LinearOperator]:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)


def check_weight(module: LinearOperator, name: str) -> None:
    """Raises unless the module's weight is a real floating-point parameter that can be planned."""
    weight = module.weight
    if isinstance(weight, UninitializedParameter):
        raise ValueError(
            f"the weight of {name!r} has no shape yet: run one batch through the lazy module before planning it"
        )
    if not isinstance(weight, nn.Parameter):
        raise TypeError(
            f"the weight of {name!r} is computed from other parameters (a parametrization), so no optimizer steps "
            "it: remove the parametrization or leave the operator out of the plan"
        )
    if weight.layout != torch.strided or weight.shape != operator_of(module).kernel_shape:
        raise ValueError(
            f"the weight of {name!r} is sparse or has another shape than its module's sizes say "
            f"({spell(weight.shape)}, not {spell(operator_of(module).kernel_shape)}): give it a dense one that fits"
        )
    if not weight.is_floating_point():
        raise TypeError(
            f"the weight of {name!r} is {weight.dtype}, and the equality is proven for real floating-point "
            "parameters only: convert the module or leave it out of the plan"
        )


def spell(sizes: Sequence[int]) -> str:
    """`(3, 3)` as `3x3`."""
    return "x".join(map(str, sizes))


def _padding(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> tuple[tuple[int, int], ...]:
    if module.padding == "valid":
        return ((0, 0),) * len(module.kernel_size)
    if module.padding == "same":
        totals = [dilation * (taps - 1) for dilation, taps in zip(module.dilation, module.kernel_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((int(size), int(size)) for size in module.padding)
