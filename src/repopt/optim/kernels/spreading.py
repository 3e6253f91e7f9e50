"""The branches of many operators on a GPU: one launch spreads the gradients over them, one sums their kernels.

    W_b.grad  =  s_b * view_b(dL/dW')                W'  =  sum_b embed_b(s_b * W_b)                          (Eq. 4)

A program works on a block of consecutive entries: of one branch's gradient, or of one operator's kernel. From the flat
index come row, column and tap, and from these the place in the operator, or in every branch that reaches the entry. A
first branch that lies in memory as the operator does (a 3x3 in a 3x3) needs the row alone. Any taps and finer groups
take the same code.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM108

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
            own = branch + BRANCH_NUMBERS * index
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
):
    program = tl.program_id(0)
    code = tl.load(programs + program).to(tl.int32)  # the operator and its branch
    number, index = code // BRANCHES, code % BRANCHES
    source = tl.load(sources + number)
    if source != 0:
        operator = geometry + (_OPERATOR + BRANCH_NUMBERS * BRANCHES) * number
        branch = operator + _OPERATOR + BRANCH_NUMBERS * index
        first = (program - tl.load(branch + _OWN_FIRST_PROGRAM)) * BLOCK
        target = flat + tl.load(places + code)
        covers = (index == 0) & (tl.load(operator + _COVERED) != 0)
        if first + BLOCK <= tl.load(branch + _OWN_SIZE):
            _spread_block(operator, branch, taps, scales, source, target, first, covers, COMPUTE, ALIGNED, False, BLOCK)
        else:
            _spread_block(operator, branch, taps, scales, source, target, first, covers, COMPUTE, ALIGNED, True, BLOCK)


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
):
    program = tl.program_id(0)
    number = tl.load(programs + program).to(tl.int32)
    target = tl.load(targets + number)
    if target != 0:
        operator = geometry + (_OPERATOR + BRANCH_NUMBERS * BRANCHES) * number
        own = kernels + BRANCHES * number
        size = tl.load(operator + _SIZE)
        first = (program - tl.load(operator + _FIRST_PROGRAM)) * BLOCK
        inside = first + tl.arange(0, BLOCK) < size
        if first + BLOCK <= size:
            _merge_block(operator, taps, scales, own, target, first, inside, BRANCHES, COMPUTE, ALIGNED, False, BLOCK)
        else:
            _merge_block(operator, taps, scales, own, target, first, inside, BRANCHES, COMPUTE, ALIGNED, True, BLOCK)
