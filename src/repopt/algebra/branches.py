"""Where a branch's kernel sits inside the operator's kernel.

    W'  =  sum_b embed_b(s_b * W_b)                                                                   (Eq. 4)

Every branch is a convolution with some taps and some groups: a 1x1 convolution has one tap, the identity is the 1x1
convolution whose groups are the channels, a fully connected layer has no taps to choose. `Placement.view` is embed_b
read backwards: the entries of an operator-shaped tensor that belong to the branch, as a writable view. `Entries` are
the same for the rows that one rank holds, together with what multiplies them.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from repopt.algebra.operators import Operator, spell


@dataclass(frozen=True)
class Conv:
    """A convolution branch, centred in the operator's kernel.

    Args:
        kernel_size: taps, one number for all dimensions or one per dimension.
        dilation: distance between taps, counted in the operator's taps.
        groups: the operator's by default; finer groups sit block-diagonally.
    """

    kernel_size: int | tuple[int, ...]
    _: KW_ONLY
    dilation: int | tuple[int, ...] = 1
    groups: int | None = None


@dataclass(frozen=True)
class Identity:
    """The identity branch: a depthwise 1x1 convolution whose constant scale is 1.

    It is left out of a block whose operator changes the shape of its input.
    """


@dataclass(frozen=True)
class Linear:
    """A fully connected branch of a fully connected operator."""


Branch = Conv | Identity | Linear


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A branch placed in an operator.

    Attributes:
        kernel_size: the branch's taps in each dimension.
        dilation: their distance, counted in the operator's taps.
        groups: the branch's groups, a multiple of the operator's.
        conv_shape: the shape of the branch's kernel as a convolution, (O, I/groups, *taps).
        margin: the operator's taps before the branch's first one, in each dimension.
        taps: the branch's taps among the operator's, as an index.
    """

    branch: Branch
    operator: Operator
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    conv_shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    margin: tuple[int, ...] = field(init=False, repr=False, compare=False)
    taps: tuple[EllipsisType | slice, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        extents = self.extents
        margin = [(whole - extent) // 2 for whole, extent in zip(self.operator.kernel_size, extents, strict=True)]
        found = {
            "conv_shape": (self.operator.out_channels, self.operator.in_channels // self.groups, *self.kernel_size),
            "margin": tuple(margin),
            "taps": (..., *map(slice, margin, map(sum, zip(margin, extents, strict=True)), self.dilation)),
        }
        for name, value in found.items():  # looked up at every step: worth keeping
            object.__setattr__(self, name, value)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is trained: an identity has one number per channel."""
        return self.conv_shape[:1] if self.is_identity else self.conv_shape

    @property
    def extents(self) -> list[int]:
        """The taps that the branch spans, with those that a dilated one leaves out."""
        return [(taps - 1) * dilation + 1 for taps, dilation in zip(self.kernel_size, self.dilation, strict=True)]

    @property
    def is_identity(self) -> bool:
        return isinstance(self.branch, Identity)

    @property
    def fills_groups(self) -> bool:
        """Whether every channel pair of the operator is one of the branch's."""
        return self.groups == self.operator.groups

    @property
    def covers(self) -> bool:
        """Whether the branch reaches every entry of the operator's kernel."""
        return self.fills_groups and self.kernel_size == self.operator.kernel_size

    @property
    def is_whole(self) -> bool:
        """Whether the branch's own kernel is as large as the operator's; an identity's has one number per channel."""
        return self.covers and not self.is_identity

    def view(self, weight: Tensor) -> Tensor:
        """The branch's entries of an operator-shaped tensor, writable, of shape (g, r, O/gr, I/gr, *taps).

        g counts the operator's groups, r the branch's groups within one of them. A step from one of the latter to the
        next goes down the rows and along the columns at once: they lie on a block diagonal.
        """
        groups, (outputs, inputs, *taps) = self.operator.groups, self.conv_shape
        finer, rows = self.groups // groups, outputs // self.groups
        entries = weight[self.taps]
        if finer == 1:
            return entries.view(groups, 1, rows, inputs, *taps)
        return entries.view(groups, finer, rows, finer, inputs, *taps).diagonal(0, 1, 3).movedim(-1, 1)

    def fold(self, kernel: Tensor) -> Tensor:
        """A kernel of the branch, or one number per row of it, in the shape of `view`."""
        groups, rows = self.operator.groups, self.operator.out_channels // self.groups
        rest = kernel.shape[1:] or (1,) * (1 + self.operator.dims)
        return kernel.view(groups, self.groups // groups, rows, *rest)

    def spread(self, folded: Tensor) -> Tensor:
        """A kernel in the shape of `view`, as the operator's kernel has it at the branch's taps, zeros in between."""
        diagonal = torch.diag_embed(folded.movedim(1, -1), 0, 1, 3)
        return diagonal.reshape(self.operator.out_channels, -1, *self.kernel_size)


def branch_name(placement: Placement) -> str:
    """`conv3x3`, `conv3x3d2`, `conv1x1g8`, `linear`, `identity`."""
    if isinstance(placement.branch, Identity):
        return "identity"
    if isinstance(placement.branch, Linear):
        return "linear"
    label = f"conv{spell(placement.kernel_size)}"
    if any(dilation != 1 for dilation in placement.dilation):
        alike = len(set(placement.dilation)) == 1
        label += f"d{spell(placement.dilation[:1] if alike else placement.dilation)}"
    return label if placement.fills_groups else f"{label}g{placement.groups}"


def place(branch: Branch, operator: Operator, name: str) -> Placement:
    dims = operator.dims
    ones = (1,) * dims
    if isinstance(branch, Identity):
        placement = Placement(
            branch=branch,
            operator=operator,
            kernel_size=ones,
            dilation=ones,
            groups=operator.out_channels,
        )
    elif isinstance(branch, Linear) and dims == 0:
        placement = Placement(branch=branch, operator=operator, kernel_size=(), dilation=(), groups=1)
    elif isinstance(branch, Conv) and dims > 0:
        placement = Placement(
            branch=branch,
            operator=operator,
            kernel_size=_spread(branch.kernel_size, dims, "kernel size", branch, name),
            dilation=_spread(branch.dilation, dims, "dilation", branch, name),
            groups=_groups(branch, operator, name),
        )
    else:
        kind = "fully connected" if dims == 0 else f"a {dims}-d convolution"
        wanted = "Linear() or Identity()" if dims == 0 else "Conv(...) or Identity()"
        raise ValueError(f"{branch} cannot sit in {name!r}, which is {kind}: use {wanted}")
    _check_centred(placement, name)
    return placement


def _spread(size: int | tuple[int, ...], dims: int, what: str, branch: Conv, name: str) -> tuple[int, ...]:
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,) * dims
    if len(sizes) != dims or not all(map(_is_count, sizes)):
        raise ValueError(f"{branch} cannot sit in {name!r}: its {what} must be one positive number or {dims} of them")
    return tuple(map(int, sizes))


def _is_count(value: Any) -> bool:
    """Whether a value is a positive whole number, of Python or of numpy."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) > 0


def _groups(branch: Conv, operator: Operator, name: str) -> int:
    groups = operator.groups if branch.groups is None else branch.groups
    if (
        not _is_count(groups)
        or groups % operator.groups
        or operator.in_channels % groups
        or operator.out_channels % groups
    ):
        raise ValueError(
            f"{branch} cannot sit in {name!r}: its groups must be a multiple of the operator's {operator.groups} that "
            f"divides {operator.in_channels} input and {operator.out_channels} output channels"
        )
    return int(groups)


def _check_centred(placement: Placement, name: str) -> None:
    extents = placement.extents
    spares = [whole - extent for whole, extent in zip(placement.operator.kernel_size, extents, strict=True)]
    inside = f"the {spell(placement.operator.kernel_size)} kernel of {name!r}"
    if any(spare < 0 for spare in spares):
        raise ValueError(
            f"{placement.branch} spans {spell(extents)} taps, which is larger than {inside}: use a smaller branch or "
            "a larger operator"
        )
    if any(spare % 2 for spare in spares):
        raise ValueError(
            f"{placement.branch} spans {spell(extents)} taps and cannot be centred in {inside}: the two must differ by "
            "an even number in every dimension"
        )


@dataclass(frozen=True, kw_only=True)
class Entries:
    """A branch's entries in an operator-shaped tensor, or in the rows of it that one rank holds.

    Attributes:
        placement: where the branch sits.
        values: a scale, or a power of it, shaped to multiply what `read` returns.
        index: flat positions of the entries, where a shard cuts through the branch's groups and no view holds them.
    """

    placement: Placement
    values: Tensor
    index: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.index is None else self.index.nbytes)

    def read(self, tensor: Tensor) -> Tensor:
        """The entries; a view that can be written to, unless there is an index."""
        if self.index is not None:
            return tensor.take(self.index)
        return tensor[self.placement.taps] if self.placement.fills_groups else self.placement.view(tensor)

    def add_(self, tensor: Tensor, summand: Tensor) -> None:
        """Adds to the entries."""
        if self.index is not None:
            tensor.put_(self.index, summand, accumulate=True)
        else:
            self.read(tensor).add_(summand)


def entries_of(
    branches: Mapping[str, Placement], values: Mapping[str, Tensor], like: Tensor, rows: range | None = None
) -> list[Entries]:
    """The entries of each branch of a block.

    Args:
        branches: the branches, by name.
        values: what multiplies each branch: a scalar, or one number per row of the whole kernel.
        like: device and dtype of the values.
        rows: the rows held here; all of them by default.
    """
    return [_entries(placement, values[branch].to(like), rows) for branch, placement in branches.items()]


def _entries(placement: Placement, values: Tensor, rows: range | None) -> Entries:
    if placement.fills_groups:
        return Entries(placement=placement, values=_over_rows(values, placement, rows))
    if rows is None:
        return Entries(placement=placement, values=values if values.ndim == 0 else placement.fold(values))
    index = _local_index(placement, rows).to(values.device)
    if values.ndim == 1:
        row_size = torch.Size(placement.operator.kernel_shape[1:]).numel()
        values = values[rows.start + index // row_size]
    return Entries(placement=placement, values=values, index=index)


def _over_rows(values: Tensor, placement: Placement, rows: range | None) -> Tensor:
    if values.ndim == 0:
        return values
    held = values if rows is None else values[rows.start : rows.stop]
    return held.view(-1, *(1,) * (1 + placement.operator.dims))


def _local_index(placement: Placement, rows: range) -> Tensor:
    shape = placement.operator.kernel_shape
    if placement.is_identity:  # one entry a row, at the centre
        outputs, taps = torch.arange(rows.start, rows.stop, device="cpu"), torch.Size(shape[2:]).numel()
        return ((outputs - rows.start) * shape[1] + outputs % shape[1]) * taps + taps // 2
    numbers = torch.arange(torch.Size(shape).numel(), device="cpu").view(shape)
    row_size = torch.Size(shape[1:]).numel()
    entries = placement.view(numbers).flatten() - rows.start * row_size
    return entries[(entries >= 0) & (entries < len(rows) * row_size)]
