"""The branches of many operators on a GPU: one launch spreads the gradients over them, one sums their kernels.

    W_b.grad  =  s_b * view_b(dL/dW')                W'  =  sum_b embed_b(s_b * W_b)                          (Eq. 4)

A program works on a block of consecutive entries: of one branch's gradient, or of one operator's kernel. From the flat
index come row, column and tap, and from these the place in the operator, or in every branch that reaches the entry. A
first branch that lies in memory as the operator does (a 3x3 in a 3x3) needs the row alone. Any taps and finer groups
take the same code.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM108

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from repopt.algebra.branches import Placement
from repopt.optim.kernels.addresses import WordTable, are_aligned
from repopt.optim.kernels.dividing import divided, divider
from repopt.optim.kernels.gradients import PassingGradients
from repopt.optim.kernels.launches import BLOCK, launched_on

# What an operator's row of the geometry holds, by column, then each of its branches; a divider takes two.
_SIZE, _ROW, _INNER, _TAPS_FIRST, _FIRST_PROGRAM, _COUNT, _COVERED, _BY_ROW, _BY_INNER, _OPERATOR = map(
    tl.constexpr, (0, 1, 2, 3, 4, 5, 6, 7, 9, 11)
)
_SCALES, _OWN_ROW, _COLUMN_STRIDE, _TAP_STRIDE, _COLUMNS, _TAPS, _FIRST_TAP, _TAP_TABLE, _FINER = map(
    tl.constexpr, range(9)
)
_HEIGHT, _GROUPED, _BY_HEIGHT, _BY_FINER, _BY_OWN_ROW, _BY_OWN_INNER = map(tl.constexpr, (9, 10, 11, 13, 15, 17))
_OWN_INNER, _OWN_SIZE, _OWN_FIRST_PROGRAM, _BRANCH = map(tl.constexpr, (19, 20, 21, 22))


@triton.jit
def _start(tensor, first, ALIGNED: tl.constexpr):
    """Where a program's block of a tensor begins."""
    start = tensor + first
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def _row(operator, first, BLOCK: tl.constexpr):
    return divided(first + tl.arange(0, BLOCK), operator + _BY_ROW)


@triton.jit
def _column_and_tap(operator, first, row, BLOCK: tl.constexpr):
    rest = first + tl.arange(0, BLOCK) - row * tl.load(operator + _ROW)
    outer = divided(rest, operator + _BY_INNER)
    inner = rest - outer * tl.load(operator + _INNER)
    if tl.load(operator + _TAPS_FIRST) != 0:
        column, tap = inner, outer
    else:
        column, tap = outer, inner
    return column, tap


@triton.jit
def _skips(operator, branch, first, BLOCK: tl.constexpr):
    """Whether a branch reaches no entry of a block, as far as that is quickly told: of a block within one row."""
    row = divided(first, operator + _BY_ROW)
    start = first - row * tl.load(operator + _ROW)
    least = divided(start, operator + _BY_INNER)
    most = divided(start + BLOCK - 1, operator + _BY_INNER)
    low = tl.load(branch + _FIRST_TAP)
    high = low
    known = tl.load(branch + _TAPS) == 1
    if tl.load(operator + _TAPS_FIRST) == 0:
        group = divided(row, branch + _BY_HEIGHT)
        group -= divided(group, branch + _BY_FINER) * tl.load(branch + _FINER)
        columns = tl.load(branch + _COLUMNS)
        low, high = group * columns, group * columns + columns - 1
        known = tl.load(branch + _FINER) > 1
    return known & (start + BLOCK <= tl.load(operator + _ROW)) & ((high < least) | (low > most))


@triton.jit
def _in_branch(branch, tap_tables, row, column, tap, inside, MASKED: tl.constexpr):
    """The places of an operator's entries in a branch's kernel, and which of them are there."""
    own_row, column_stride = tl.load(branch + _OWN_ROW), tl.load(branch + _COLUMN_STRIDE)
    tap_stride, columns, taps = tl.load(branch + _TAP_STRIDE), tl.load(branch + _COLUMNS), tl.load(branch + _TAPS)
    finer, height, grouped = tl.load(branch + _FINER), tl.load(branch + _HEIGHT), tl.load(branch + _GROUPED)
    tap -= tl.load(branch + _FIRST_TAP)
    if taps > 1:
        own_taps = tap_tables + tl.load(branch + _TAP_TABLE) + tap
        if MASKED:
            tap = tl.load(own_taps, mask=inside, other=-1)
        else:
            tap = tl.load(own_taps)
    if finer > 1:  # on a block diagonal
        group = row
        if height > 1:
            group = divided(row, branch + _BY_HEIGHT)
        if grouped != 0:
            group -= divided(group, branch + _BY_FINER) * finer
        column -= group * columns
    # Without a sign, what is below 0 is beyond the end.
    reached = (tap.to(tl.uint32) < taps.to(tl.uint32)) & (column.to(tl.uint32) < columns.to(tl.uint32))
    if MASKED:
        reached = reached & inside
    return row * own_row + column * column_stride + tap * tap_stride, reached


@triton.jit
def _in_operator(operator, branch, tap_tables, place, row, inside, MASKED: tl.constexpr):
    """The places of a branch's entries in the operator's kernel."""
    rest = place - row * tl.load(branch + _OWN_ROW)
    outer = divided(rest, branch + _BY_OWN_INNER)
    inner = rest - outer * tl.load(branch + _OWN_INNER)
    if tl.load(branch + _TAP_STRIDE) == 1:
        column, tap = outer, inner
    else:
        column, tap = inner, outer
    if tl.load(branch + _TAPS) > 1:
        all_taps = tap_tables + tl.load(branch + _TAP_TABLE) - tl.load(branch + _TAPS) + tap
        if MASKED:
            tap = tl.load(all_taps, mask=inside, other=0)
        else:
            tap = tl.load(all_taps)
    else:
        tap += tl.load(branch + _FIRST_TAP)
    finer = tl.load(branch + _FINER)
    if finer > 1:  # on a block diagonal
        group = divided(row, branch + _BY_HEIGHT)
        group -= divided(group, branch + _BY_FINER) * finer
        column += group * tl.load(branch + _COLUMNS)
    if tl.load(operator + _TAPS_FIRST) != 0:
        in_row = tap * tl.load(operator + _INNER) + column
    else:
        in_row = column * tl.load(operator + _INNER) + tap
    return row * tl.load(operator + _ROW) + in_row


@triton.jit
def _spread_block(
    operator,
    branch,
    taps,
    scales,
    source,
    target,
    first,
    covers,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    here = tl.arange(0, BLOCK)
    place = first + here
    inside = place < tl.load(branch + _OWN_SIZE)
    row = divided(place, branch + _BY_OWN_ROW)
    scale = scales + tl.load(branch + _SCALES) + row
    if covers:
        start = _start(source.to(scales.dtype), first, ALIGNED) + here
    else:
        start = source.to(scales.dtype) + _in_operator(operator, branch, taps, place, row, inside, MASKED)
    target = tl.multiple_of(target + first, 16) + here
    if MASKED:
        product = tl.load(start, mask=inside, other=0).to(COMPUTE) * tl.load(scale, mask=inside, other=0).to(COMPUTE)
        tl.store(target, product.to(scales.dtype.element_ty), mask=inside)
    else:
        product = tl.load(start).to(COMPUTE) * tl.load(scale).to(COMPUTE)
        tl.store(target, product.to(scales.dtype.element_ty))


@triton.jit
def _merge_block(
    operator,
    taps,
    scales,
    kernels,
    target,
    first,
    inside,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    here = tl.arange(0, BLOCK)
    count, covered = tl.load(operator + _COUNT), tl.load(operator + _COVERED)
    total = tl.zeros((BLOCK,), COMPUTE)
    if covered != 0:
        start = _start(tl.load(kernels).to(scales.dtype), first, ALIGNED)
        if MASKED:
            total = tl.load(start + here, mask=inside, other=0).to(COMPUTE)
        else:
            total = tl.load(start + here).to(COMPUTE)
    row = _row(operator, first, BLOCK)
    branch = operator + _OPERATOR
    if covered != 0:
        scale = scales + tl.load(branch + _SCALES) + row
        if MASKED:
            total *= tl.load(scale, mask=inside, other=0).to(COMPUTE)
        else:
            total *= tl.load(scale).to(COMPUTE)
    if count > covered:
        column, tap = _column_and_tap(operator, first, row, BLOCK)
        for index in tl.static_range(BRANCHES):
            own = branch + _BRANCH * index
            used = (index >= covered) & (index < count)
            if used:
                used = not _skips(operator, own, first, BLOCK)
            if used:
                place, reached = _in_branch(own, taps, row, column, tap, inside, MASKED)
                scale = scales + tl.load(own + _SCALES) + row
                kernel = tl.load(kernels + index).to(scales.dtype)
                value = tl.load(kernel + place, mask=reached, other=0).to(COMPUTE)
                total += value * tl.load(scale, mask=reached, other=0).to(COMPUTE)
    start = _start(target.to(scales.dtype), first, ALIGNED)
    if MASKED:
        tl.store(start + here, total.to(scales.dtype.element_ty), mask=inside)
    else:
        tl.store(start + here, total.to(scales.dtype.element_ty))


@triton.jit
def _spread(
    programs,
    geometry,
    taps,
    scales,
    sources,
    places,
    flat,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    code = tl.load(programs + program).to(tl.int32)  # the operator and its branch
    number, index = code // BRANCHES, code % BRANCHES
    source = tl.load(sources + number)
    if source != 0:
        operator = geometry + (_OPERATOR + _BRANCH * BRANCHES) * number
        branch = operator + _OPERATOR + _BRANCH * index
        first = (program - tl.load(branch + _OWN_FIRST_PROGRAM)) * BLOCK
        target = flat + tl.load(places + code)
        covers = (index == 0) & (tl.load(operator + _COVERED) != 0)
        if first + BLOCK <= tl.load(branch + _OWN_SIZE):
            _spread_block(operator, branch, taps, scales, source, target, first, covers, COMPUTE, ALIGNED, False, BLOCK)
        else:
            _spread_block(operator, branch, taps, scales, source, target, first, covers, COMPUTE, ALIGNED, True, BLOCK)


@triton.jit
def _merge(
    programs,
    geometry,
    taps,
    scales,
    targets,
    kernels,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    number = tl.load(programs + program).to(tl.int32)
    target = tl.load(targets + number)
    if target != 0:
        operator = geometry + (_OPERATOR + _BRANCH * BRANCHES) * number
        own = kernels + BRANCHES * number
        size = tl.load(operator + _SIZE)
        first = (program - tl.load(operator + _FIRST_PROGRAM)) * BLOCK
        inside = first + tl.arange(0, BLOCK) < size
        if first + BLOCK <= size:
            _merge_block(operator, taps, scales, own, target, first, inside, BRANCHES, COMPUTE, ALIGNED, False, BLOCK)
        else:
            _merge_block(operator, taps, scales, own, target, first, inside, BRANCHES, COMPUTE, ALIGNED, True, BLOCK)


@dataclass(frozen=True, kw_only=True)
class PlacedKernel:
    """A branch's own kernel, where it sits, and its scale, which is a number or one per row."""

    placement: Placement
    kernel: Tensor
    scale: Tensor


class BlocksAtOnce:
    """Blocks whose weights share a device and a dtype.

    Args:
        weights: the operators' weights, which `launches.takes`, and so the branches' kernels.
        blocks: the branches of each, in the order in which they are summed.
    """

    def __init__(self, weights: Sequence[Tensor], blocks: Sequence[Sequence[PlacedKernel]]) -> None:
        like = self._like = weights[0].detach()
        most = max(map(len, blocks))
        self._blocks = blocks
        self._weights = [weight.detach() for weight in weights]
        self._strides = list(map(Tensor.stride, weights))
        self._grads = PassingGradients([each.kernel for block in blocks for each in block])
        geometry: list[list[int]] = []
        taps: list[int] = []
        scales: list[Tensor] = []
        programs: list[int] = []
        own_programs: list[int] = []
        addresses: list[list[int]] = []
        places: list[list[int]] = []
        starts = iter(self._grads.places)
        for number, (weight, block) in enumerate(zip(weights, blocks, strict=True)):
            numbers = _operator(weight, block, len(programs))
            for index, each in enumerate(block):
                taps += _taps(each.placement)
                numbers += [sum(map(len, scales)), *_branch(each, len(taps)), len(own_programs)]
                taps += _own_taps(each.placement)
                scales.append(each.scale.to(like).expand(len(weight)))
                own_programs += [number * most + index] * -(-each.kernel.numel() // BLOCK)
            padding = [0] * (most - len(block))
            geometry.append(numbers + _BRANCH.value * padding)
            places.append([next(starts) for _ in block] + padding)
            addresses.append([each.kernel.data_ptr() for each in block] + padding)
            programs += [number] * -(-weight.numel() // BLOCK)
        dtype = torch.int16 if len(weights) * most < 2**15 else torch.int32
        self._programs = torch.tensor(programs, device=like.device).to(dtype)
        self._own_programs = torch.tensor(own_programs, device=like.device).to(dtype)
        self._tables = (
            torch.tensor(geometry, dtype=torch.int32, device=like.device),
            torch.tensor(taps, dtype=torch.int32, device=like.device),
            torch.cat(scales),
        )
        self._places = torch.tensor(places, device=like.device)
        self._kernels = torch.tensor(addresses, device=like.device)
        self._are_kernels_aligned = all(map(are_aligned, addresses))
        self._sources = WordTable(like.device)
        self._targets = WordTable(like.device)
        self._options = {
            "BRANCHES": most,
            "COMPUTE": tl.float64 if like.dtype == torch.float64 else tl.float32,
            "BLOCK": BLOCK,
        }

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads the tables, which must then be kept."""
        return self._sources.is_captured or self._targets.is_captured

    def spread(self, grads: Sequence[Tensor | None]) -> None:
        """Gives each kernel its gradient, in memory that all of them share; None where the weight has none."""
        grads = self._laid_out(grads)
        words = _addresses(grads)
        sources, flat = self._sources.of(words), self._grads.memory()
        with launched_on(self._like.device):
            _spread[(len(self._own_programs),)](
                self._own_programs,
                *self._tables,
                sources,
                self._places,
                flat,
                ALIGNED=are_aligned(words),
                **self._options,
            )
        self._grads.give()
        for block, word in zip(self._blocks, words, strict=True):
            if word == 0:
                for each in block:
                    each.kernel.grad = None

    def merge_into_(self, targets: Sequence[Tensor | None]) -> None:
        """Writes what the kernels make into tensors of the weights' layouts; None leaves an operator out."""
        words = _addresses(targets)
        table, aligned = self._targets.of(words), self._are_kernels_aligned and are_aligned(words)
        with launched_on(self._like.device):
            _merge[(len(self._programs),)](
                self._programs, *self._tables, table, self._kernels, ALIGNED=aligned, **self._options
            )
        torch.autograd.graph.increment_version([target for target in targets if target is not None])

    def release(self) -> None:
        """Takes the gradients from the kernels."""
        self._grads.release()

    def _laid_out(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients as the weights lie in memory."""
        return [
            grad
            if grad is None or (grad.stride() == strides and grad.dtype == self._like.dtype)
            else torch.empty_like(weight).copy_(grad)
            for grad, weight, strides in zip(grads, self._weights, self._strides, strict=True)
        ]


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _operator(weight: Tensor, block: Sequence[PlacedKernel], first_program: int) -> list[int]:
    """The numbers of an operator, before those of its branches."""
    columns, taps, taps_first = weight.shape[1], weight.shape[2:].numel(), not weight.is_contiguous()
    row, inner = columns * taps, columns if taps_first else taps
    leading = block[0]
    covered = leading.placement.covers and leading.kernel.ndim > 1 and leading.kernel.is_contiguous() != taps_first
    numbers = [weight.numel(), row, inner, int(taps_first), first_program, len(block), int(covered)]
    return [*numbers, *divider(row), *divider(inner)]


def _branch(each: PlacedKernel, tap_table: int) -> list[int]:
    """The numbers of a branch from _OWN_ROW on, but for its first program."""
    placement = each.placement
    outputs, columns, *sizes = placement.conv_shape
    taps = torch.Size(sizes).numel()
    strides = (taps, 1) if each.kernel.is_contiguous() else (1, columns)
    first_tap = _own_taps(placement).index(0) if taps == 1 else 0
    finer, height = placement.groups // placement.operator.groups, outputs // placement.groups
    numbers = [columns * taps, *strides, columns, taps, first_tap, tap_table, finer, height]
    inner = taps if strides[1] == 1 else columns
    return [
        *(*numbers, int(placement.operator.groups > 1), *divider(height), *divider(finer)),
        *(*divider(columns * taps), *divider(inner), inner, each.kernel.numel()),
    ]


def _taps(placement: Placement) -> list[int]:
    """The operator's tap of each of the branch's."""
    sizes = torch.Size(placement.operator.kernel_size)
    taps: list[int] = torch.arange(sizes.numel()).view(sizes)[placement.taps].flatten().tolist()
    return taps


def _own_taps(placement: Placement) -> list[int]:
    """The branch's tap at each of the operator's, -1 for none."""
    sizes = torch.Size(placement.operator.kernel_size)
    own = torch.full(sizes, -1)
    reached = own[placement.taps]
    own[placement.taps] = torch.arange(reached.numel()).view_as(reached)
    taps: list[int] = own.flatten().tolist()
    return taps
