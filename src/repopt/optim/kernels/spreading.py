"""The branches of many operators on a GPU: one launch spreads the gradients over them, one sums their kernels.

    W_b.grad  =  s_b * view_b(dL/dW')                W'  =  sum_b embed_b(s_b * W_b)                          (Eq. 4)

A program works on a block of consecutive entries of one branch's gradient, or of one operator's kernel. Row, column and
tap are computed from the flat index. A branch whose entries lie in memory as the operator's do (a 3x3 in a 3x3) needs
the row alone. Any taps, finer groups and the identity (a 1x1 with a group per channel) take the same code.
"""

# mypy: disable-error-code="no-untyped-def"

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repopt.algebra.branches import Placement
from repopt.algebra.csla import memory_format_of
from repopt.optim.kernels.addresses import AddressTable

_BLOCK = 1024
_PADDING = 64  # entries: every gradient starts at a multiple of 16 bytes

# What a row of the two tables holds, by column; a divisor takes two.
_KERNEL, _OFFSET, _SCALES, _OPERATOR, _SIZE, _COLUMNS, _TAPS, _FINER = map(tl.constexpr, range(8))
_FIRST_TAP, _FIRST_OWN_TAP, _SAME_ORDER, _IS_LAST, _BY_ROW, _BY_INNER, _BY_GROUP, _BY_FINER, _BRANCH_NUMBERS = map(
    tl.constexpr, (8, 9, 10, 11, 12, 14, 16, 18, 20)
)
_ALL, _ALL_COLUMNS, _ALL_TAPS, _ALL_IS_LAST, _FIRST_BRANCH, _COUNT, _ALL_BY_ROW, _ALL_BY_INNER, _OPERATOR_NUMBERS = map(
    tl.constexpr, (0, 1, 2, 3, 4, 5, 6, 8, 10)
)


@triton.jit
def _divide(number, divisor):
    """The quotient by the divisor that `_divisor` wrote into a table, without a division; number is below 2^31."""
    magic = tl.load(divisor).to(tl.uint32).to(tl.uint64)
    shift = tl.load(divisor + 1).to(tl.uint64)
    return ((number.to(tl.uint32).to(tl.uint64) * magic) >> shift).to(tl.int32)


@triton.jit
def _column_and_tap(rest, table, is_last, columns, taps):
    """Where an entry of a row lies: a row is (column, tap) in memory, or (tap, column) if channels are last."""
    inner = tl.where(is_last, columns, taps)
    outer = _divide(rest, table)
    rest = rest - outer * inner
    return tl.where(is_last, rest, outer), tl.where(is_last, outer, rest)


@triton.jit
def _first_column(row, branch, columns):
    """The operator's column at which a row of a branch starts, which is 0 unless its groups are finer."""
    finer = tl.load(branch + _FINER).to(tl.int32)
    group = _divide(row, branch + _BY_GROUP)
    return (group - _divide(group, branch + _BY_FINER) * finer) * columns


@triton.jit
def _spread_block(
    branch,
    operator,
    taps,
    scales,
    source,
    target,
    first,
    COMPUTE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = first + tl.arange(0, BLOCK)
    inside = place < tl.load(branch + _SIZE) if MASKED else tl.full((BLOCK,), True, tl.int1)
    row = _divide(place, branch + _BY_ROW)
    if tl.load(branch + _SAME_ORDER) != 0:  # in the operator's order
        value = tl.load(source + place, mask=inside)
    else:
        columns = tl.load(branch + _COLUMNS).to(tl.int32)
        count = tl.load(branch + _TAPS).to(tl.int32)
        rest = place - row * columns * count
        column, tap = _column_and_tap(rest, branch + _BY_INNER, tl.load(branch + _IS_LAST) != 0, columns, count)
        column += _first_column(row, branch, columns)
        tap = tl.load(taps + tl.load(branch + _FIRST_TAP) + tap, mask=inside, other=0)
        all_columns = tl.load(operator + _ALL_COLUMNS).to(tl.int32)
        all_taps = tl.load(operator + _ALL_TAPS).to(tl.int32)
        is_last = tl.load(operator + _ALL_IS_LAST) != 0
        in_row = tl.where(is_last, tap * all_columns + column, column * all_taps + tap)
        value = tl.load(source + row * all_columns * all_taps + in_row, mask=inside)
    scale = tl.load(scales + tl.load(branch + _SCALES) + row, mask=inside).to(COMPUTE)
    tl.store(target + place, (value.to(COMPUTE) * scale).to(target.dtype.element_ty), mask=inside)


@triton.jit
def _spread(
    programs,
    branches,
    operators,
    taps,
    scales,
    sources,
    targets,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = programs + 2 * tl.program_id(0)
    branch = branches + _BRANCH_NUMBERS * tl.load(program)
    first = tl.load(program + 1)
    number = tl.load(branch + _OPERATOR)
    address = tl.load(sources + number)
    if address != 0:
        operator = operators + _OPERATOR_NUMBERS * number
        source = address.to(scales.dtype)
        if ALIGNED:
            source = tl.multiple_of(source, 16)
        target = targets + tl.multiple_of(tl.load(branch + _OFFSET), 16)
        if first + BLOCK <= tl.load(branch + _SIZE):
            _spread_block(
                branch, operator, taps, scales, source, target, tl.multiple_of(first, BLOCK), COMPUTE, False, BLOCK
            )
        else:
            _spread_block(branch, operator, taps, scales, source, target, first, COMPUTE, True, BLOCK)


@triton.jit
def _merge_block(
    operator,
    branches,
    taps,
    scales,
    target,
    first,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = first + tl.arange(0, BLOCK)
    inside = place < tl.load(operator + _ALL) if MASKED else tl.full((BLOCK,), True, tl.int1)
    row = _divide(place, operator + _ALL_BY_ROW)
    all_columns = tl.load(operator + _ALL_COLUMNS).to(tl.int32)
    all_taps = tl.load(operator + _ALL_TAPS).to(tl.int32)
    rest = place - row * all_columns * all_taps
    column, tap = _column_and_tap(
        rest, operator + _ALL_BY_INNER, tl.load(operator + _ALL_IS_LAST) != 0, all_columns, all_taps
    )
    count = tl.load(operator + _COUNT)
    total = tl.zeros((BLOCK,), COMPUTE)
    for index in tl.static_range(BRANCHES):
        if index < count:
            branch = branches + _BRANCH_NUMBERS * (tl.load(operator + _FIRST_BRANCH) + index)
            kernel = tl.multiple_of(tl.load(branch + _KERNEL).to(scales.dtype), 16)
            scale = tl.load(scales + tl.load(branch + _SCALES) + row, mask=inside).to(COMPUTE)
            if tl.load(branch + _SAME_ORDER) != 0:
                total += tl.load(kernel + place, mask=inside).to(COMPUTE) * scale
            else:
                columns = tl.load(branch + _COLUMNS).to(tl.int32)
                own_column = column - _first_column(row, branch, columns)
                own_tap = tl.load(taps + tl.load(branch + _FIRST_OWN_TAP) + tap, mask=inside, other=-1)
                reached = inside & (own_tap >= 0) & (own_column >= 0) & (own_column < columns)
                own_taps = tl.load(branch + _TAPS).to(tl.int32)
                in_row = tl.where(
                    tl.load(branch + _IS_LAST) != 0, own_tap * columns + own_column, own_column * own_taps + own_tap
                )
                value = tl.load(kernel + row * columns * own_taps + in_row, mask=reached, other=0).to(COMPUTE)
                total += value * scale
    tl.store(target + place, total.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _merge(
    programs,
    branches,
    operators,
    taps,
    scales,
    targets,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = programs + 2 * tl.program_id(0)
    number = tl.load(program)
    first = tl.load(program + 1)
    address = tl.load(targets + number)
    if address != 0:
        operator = operators + _OPERATOR_NUMBERS * number
        target = address.to(scales.dtype)
        if ALIGNED:
            target = tl.multiple_of(target, 16)
        if first + BLOCK <= tl.load(operator + _ALL):
            first = tl.multiple_of(first, BLOCK)
            _merge_block(operator, branches, taps, scales, target, first, BRANCHES, COMPUTE, False, BLOCK)
        else:
            _merge_block(operator, branches, taps, scales, target, first, BRANCHES, COMPUTE, True, BLOCK)


@dataclass(frozen=True, kw_only=True)
class PlacedKernel:
    """A branch's own kernel, where it sits, and its scale, which is a number or one per row."""

    placement: Placement
    kernel: Tensor
    scale: Tensor


class BlocksAtOnce:
    """Blocks whose weights share a device and a dtype.

    Args:
        weights: the operators' weights, of a layout that `takes_layout` accepts.
        blocks: the branches of each, in the order in which they are summed.
    """

    def __init__(self, weights: Sequence[Tensor], blocks: Sequence[Sequence[PlacedKernel]]) -> None:
        like = weights[0].detach()
        branches: list[list[int]] = []
        operators: list[list[int]] = []
        taps: list[int] = []
        scales: list[Tensor] = []
        self._like = like
        self._weights = [weight.detach() for weight in weights]
        self._formats = [memory_format_of(weight) for weight in weights]
        self._grads: list[tuple[int, Tensor, tuple[Any, ...]]] = []
        self._size = rows = 0
        for number, (weight, block) in enumerate(zip(weights, blocks, strict=True)):
            columns, count = weight.shape[1], weight.shape[2:].numel()
            is_last = not weight.is_contiguous()
            operators.append(
                [
                    *(weight.numel(), columns, count, is_last, len(branches), len(block)),
                    *_divisor(columns * count),
                    *_divisor(columns if is_last else count),
                ]
            )
            for each in block:
                branches.append(
                    [
                        *(each.kernel.data_ptr(), self._size, rows, number, each.kernel.numel()),
                        *_geometry(each, is_last, len(taps)),
                    ]
                )
                taps += _taps(each.placement)
                scales.append(each.scale.to(like).expand(weight.shape[0]))
                self._grads.append((number, each.kernel, (each.kernel.shape, each.kernel.stride(), self._size)))
                self._size += -(-each.kernel.numel() // _PADDING) * _PADDING
                rows += weight.shape[0]

        def on_device(numbers: Sequence[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(numbers, dtype=dtype, device=like.device)

        self._most = max(map(len, blocks))
        self._tables = (
            on_device(branches, torch.int64),
            on_device(operators, torch.int64),
            on_device(taps, torch.int32),
            torch.cat(scales),
        )
        self._spread_programs = _programs([each.kernel.numel() for block in blocks for each in block], like.device)
        self._merge_programs = _programs([weight.numel() for weight in weights], like.device)
        self._sources = AddressTable(len(weights), like.device)
        self._targets = AddressTable(len(weights), like.device)
        self._options = {"COMPUTE": tl.float64 if like.dtype == torch.float64 else tl.float32, "BLOCK": _BLOCK}

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads the tables, which must then be kept."""
        return self._sources.is_captured or self._targets.is_captured

    def spread(self, grads: Sequence[Tensor | None]) -> None:
        """Gives each kernel its gradient, in memory that all of them share; None where the weight has none."""
        grads = [
            grad
            if grad is None or (grad.is_contiguous(memory_format=format) and grad.dtype == self._like.dtype)
            else torch.empty_like(weight).copy_(grad)
            for grad, weight, format in zip(grads, self._weights, self._formats, strict=True)
        ]
        flat = self._like.new_empty(self._size)
        sources = self._sources.of(grads)
        with self._on_device():
            _spread[(len(self._spread_programs),)](
                self._spread_programs, *self._tables, sources, flat, ALIGNED=self._sources.aligned, **self._options
            )
        for number, kernel, place in self._grads:
            kernel.grad = None if grads[number] is None else flat.as_strided(*place)

    def merge_into_(self, targets: Sequence[Tensor | None]) -> None:
        """Writes what the kernels make into tensors of the weights' layouts; None leaves an operator out."""
        addresses = self._targets.of(targets)
        with self._on_device():
            _merge[(len(self._merge_programs),)](
                self._merge_programs,
                *self._tables,
                addresses,
                BRANCHES=self._most,
                ALIGNED=self._targets.aligned,
                **self._options,
            )
        torch.autograd.graph.increment_version([target for target in targets if target is not None])

    def _on_device(self) -> Any:
        return torch.cuda.device(self._like.device) if self._like.is_cuda else nullcontext()  # Triton's interpreter


def takes_layout(weight: Tensor) -> bool:
    """Whether a kernel is dense, contiguous or with its channels last, and not too large for the index."""
    return 0 < weight.numel() < 2**31 - _BLOCK and weight.is_contiguous(memory_format=memory_format_of(weight))


def _geometry(each: PlacedKernel, operator_is_last: bool, first_tap: int) -> list[int]:
    """The numbers of a branch from _COLUMNS on."""
    placement = each.placement
    outputs, columns, *taps = placement.conv_shape
    count = torch.Size(taps).numel()
    finer = placement.groups // placement.operator.groups
    is_last = not each.kernel.is_contiguous()
    in_the_same_order = placement.covers and each.kernel.ndim > 1 and is_last == operator_is_last
    return [
        *(columns, count, finer, first_tap, first_tap + count, in_the_same_order, is_last),
        *_divisor(columns * count),
        *_divisor(columns if is_last else count),
        *_divisor(outputs // placement.groups),
        *_divisor(finer),
    ]


def _taps(placement: Placement) -> list[int]:
    """The operator's tap of each of the branch's, then the branch's tap of each of the operator's, -1 for none."""
    sizes = torch.Size(placement.operator.kernel_size)
    reached = torch.arange(sizes.numel()).view(sizes)[placement.taps].flatten()
    own = torch.full((sizes.numel(),), -1)
    own[reached] = torch.arange(len(reached))
    return [*reached.tolist(), *own.tolist()]


def _divisor(divisor: int) -> list[int]:
    """The factor and the shift that divide numbers below 2^31: n // d = (n * factor) >> shift."""
    shift = 31 + (divisor - 1).bit_length()
    return [-(-(1 << shift) // divisor), shift]


def _programs(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The tensor and the first entry of each program."""
    blocks = torch.tensor([-(-size // _BLOCK) for size in sizes])
    owners = torch.repeat_interleave(blocks)
    firsts = (torch.arange(len(owners)) - (blocks.cumsum(0) - blocks)[owners]) * _BLOCK
    return torch.stack([owners, firsts], dim=1).to(device, torch.int32)
