"""The branches of many operators on a GPU: one launch spreads the gradients over them, one sums their kernels.

    W_b.grad  =  s_b * view_b(dL/dW')                W'  =  sum_b embed_b(s_b * W_b)                          (Eq. 4)

A program works on a block of consecutive entries: of one branch's gradient, or of one operator's kernel. From the flat
index come row, column and tap, and from these the place in the operator, or in every branch that reaches the entry. A
first branch that lies in memory as the operator does (a 3x3 in a 3x3) needs the row alone. Any taps and finer groups
take the same code.

A block within one row has one scale for each branch. Others are done in parts: pointers of their own to every entry's
scales take so many registers that fewer programs would run at once, those of one row included.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM102

import triton
import triton.language as tl

from repopt.optim.kernels.dividing import divided

# What an operator's row of the geometry holds, by column, then each of its branches; a divider takes two.
_SIZE, _ROW, _INNER, _TAPS_FIRST, _FIRST_PROGRAM, _COUNT, _COVERED, _BY_ROW, _BY_INNER, _OPERATOR = map(
    tl.constexpr, (0, 1, 2, 3, 4, 5, 6, 7, 9, 11)
)
_SCALES, _OWN_ROW, _COLUMN_STRIDE, _TAP_STRIDE, _COLUMNS, _TAPS, _FIRST_TAP, _TAP_TABLE, _FINER = map(
    tl.constexpr, range(9)
)
_HEIGHT, _GROUPED, _BY_HEIGHT, _BY_FINER, _BY_OWN_ROW, _BY_OWN_INNER = map(tl.constexpr, (9, 10, 11, 13, 15, 17))
_OWN_INNER, _OWN_SIZE, _OWN_FIRST_PROGRAM, BRANCH_NUMBERS = map(tl.constexpr, (19, 20, 21, 22))


@triton.jit
def _entries(address, place, scales, ALIGNED: tl.constexpr):
    """Pointers to some entries of a tensor, which has the scales' type."""
    tensor = address.to(scales.dtype)
    if ALIGNED:
        tensor = tl.multiple_of(tensor, 16)
    return tensor + place


@triton.jit
def _column_and_tap(operator, place, row):
    rest = place - row * tl.load(operator + _ROW)
    outer = divided(rest, operator + _BY_INNER)
    inner = rest - outer * tl.load(operator + _INNER)
    if tl.load(operator + _TAPS_FIRST) != 0:
        column, tap = inner, outer
    else:
        column, tap = outer, inner
    return column, tap


@triton.jit
def _skips(operator, branch, first, row, BLOCK: tl.constexpr):
    """Whether a branch reaches no entry of a block within one row, as far as that is quickly told."""
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
    return known & ((high < least) | (low > most))


@triton.jit
def _in_branch(branch, tap_tables, row, column, tap):
    """The places of an operator's entries in a branch's kernel, and which of them are there."""
    columns, taps, finer = tl.load(branch + _COLUMNS), tl.load(branch + _TAPS), tl.load(branch + _FINER)
    tap -= tl.load(branch + _FIRST_TAP)
    if taps > 1:
        tap = tl.load(tap_tables + tl.load(branch + _TAP_TABLE) + tap)
    if finer > 1:  # on a block diagonal
        group = row
        if tl.load(branch + _HEIGHT) > 1:
            group = divided(row, branch + _BY_HEIGHT)
        if tl.load(branch + _GROUPED) != 0:
            group -= divided(group, branch + _BY_FINER) * finer
        column -= group * columns
    # Without a sign, what is below 0 is beyond the end.
    reached = (tap.to(tl.uint32) < taps.to(tl.uint32)) & (column.to(tl.uint32) < columns.to(tl.uint32))
    in_row = column * tl.load(branch + _COLUMN_STRIDE) + tap * tl.load(branch + _TAP_STRIDE)
    return row * tl.load(branch + _OWN_ROW) + in_row, reached


@triton.jit
def _in_operator(operator, branch, tap_tables, place, row):
    """The places of a branch's entries in the operator's kernel."""
    rest = place - row * tl.load(branch + _OWN_ROW)
    outer = divided(rest, branch + _BY_OWN_INNER)
    inner = rest - outer * tl.load(branch + _OWN_INNER)
    if tl.load(branch + _TAP_STRIDE) == 1:
        column, tap = outer, inner
    else:
        column, tap = inner, outer
    if tl.load(branch + _TAPS) > 1:
        tap = tl.load(tap_tables + tl.load(branch + _TAP_TABLE) - tl.load(branch + _TAPS) + tap)
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
def _share(
    operator, branch, taps, scales, source, place, row, covers, COMPUTE: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """A branch's share of the gradient at some of its entries; the row is one for all, or one for each."""
    scale = tl.load(scales + tl.load(branch + _SCALES) + row).to(COMPUTE)
    if covers:
        share = tl.load(_entries(source, place, scales, ALIGNED)).to(COMPUTE) * scale
    else:
        there = _in_operator(operator, branch, taps, place, row)
        share = tl.load(_entries(source, there, scales, ALIGNED)).to(COMPUTE) * scale
    return share.to(scales.dtype.element_ty)


@triton.jit
def _sum(
    operator,
    taps,
    scales,
    kernels,
    place,
    row,
    first,
    ONE_ROW: tl.constexpr,
    BRANCHES: tl.constexpr,
    COMPUTE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What the branches make of some of an operator's entries; the row is one for all, or one for each."""
    count, covered = tl.load(operator + _COUNT), tl.load(operator + _COVERED)
    branch = operator + _OPERATOR
    total = tl.zeros(place.shape, COMPUTE)
    if covered != 0:
        total = tl.load(_entries(tl.load(kernels), place, scales, ALIGNED)).to(COMPUTE)
        total *= tl.load(scales + tl.load(branch + _SCALES) + row).to(COMPUTE)
    if count > covered:
        column, tap = _column_and_tap(operator, place, row)
        for index in tl.static_range(BRANCHES):
            own = branch + BRANCH_NUMBERS * index
            used = (index >= covered) & (index < count)
            if ONE_ROW:
                if used:
                    used = not _skips(operator, own, first, row, BLOCK)
            if used:
                there, reached = _in_branch(own, taps, row, column, tap)
                kernel = _entries(tl.load(kernels + index), there, scales, False)
                value = tl.load(kernel, mask=reached, other=0).to(COMPUTE)
                total += value * tl.load(scales + tl.load(own + _SCALES) + row).to(COMPUTE)
    return total.to(scales.dtype.element_ty)


@triton.jit
def spread(
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
    PART: tl.constexpr,
):
    program = tl.program_id(0)
    code = tl.load(programs + program).to(tl.int32)  # the operator and its branch
    number, index = code // BRANCHES, code % BRANCHES
    source = tl.load(sources + number)
    if source != 0:
        operator = geometry + (_OPERATOR + BRANCH_NUMBERS * BRANCHES) * number
        branch = operator + _OPERATOR + BRANCH_NUMBERS * index
        first = (program - tl.load(branch + _OWN_FIRST_PROGRAM)) * BLOCK
        target = tl.multiple_of(flat + tl.load(places + code), 16)
        covers = (index == 0) & (tl.load(operator + _COVERED) != 0)
        row = divided(first, branch + _BY_OWN_ROW)
        if first + BLOCK <= (row + 1) * tl.load(branch + _OWN_ROW):
            place = first + tl.arange(0, BLOCK)
            share = _share(operator, branch, taps, scales, source, place, row, covers, COMPUTE, ALIGNED)
            tl.store(target + place, share)
        else:
            size = tl.load(branch + _OWN_SIZE)
            for part in range(0, BLOCK, PART):
                place = first + part + tl.arange(0, PART)
                kept = tl.minimum(place, size - 1)
                rows = divided(kept, branch + _BY_OWN_ROW)
                share = _share(operator, branch, taps, scales, source, kept, rows, covers, COMPUTE, ALIGNED)
                tl.store(target + place, share, mask=place < size)


@triton.jit
def merge(
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
    PART: tl.constexpr,
):
    program = tl.program_id(0)
    number = tl.load(programs + program).to(tl.int32)
    target = tl.load(targets + number)
    if target != 0:
        operator = geometry + (_OPERATOR + BRANCH_NUMBERS * BRANCHES) * number
        own = kernels + BRANCHES * number
        first = (program - tl.load(operator + _FIRST_PROGRAM)) * BLOCK
        row = divided(first, operator + _BY_ROW)
        if first + BLOCK <= (row + 1) * tl.load(operator + _ROW):
            place = first + tl.arange(0, BLOCK)
            total = _sum(operator, taps, scales, own, place, row, first, True, BRANCHES, COMPUTE, ALIGNED, BLOCK)
            tl.store(_entries(target, place, scales, ALIGNED), total)
        else:
            size = tl.load(operator + _SIZE)
            for part in range(0, BLOCK, PART):
                place = first + part + tl.arange(0, PART)
                kept = tl.minimum(place, size - 1)
                rows = divided(kept, operator + _BY_ROW)
                total = _sum(operator, taps, scales, own, kept, rows, first, False, BRANCHES, COMPUTE, ALIGNED, BLOCK)
                tl.store(_entries(target, place, scales, ALIGNED), total, mask=place < size)
