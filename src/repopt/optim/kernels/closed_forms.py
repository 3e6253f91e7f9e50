"""The steps of SGD, Adam and Lion on the imagined blocks, each for many tensors in one launch.

A program steps one block of one tensor, which `launches` names. It reads weight, gradient and states once and writes
weight and states once. That is what takes the time: the factors of its entries are worked out meanwhile.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM108

import triton
import triton.language as tl

from repopt.optim.kernels.dividing import divided


@triton.jit
def _array(arrays, which: tl.constexpr, tensors, first, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Where a program's block of one of a tensor's arrays begins."""
    start = tl.load(arrays + which * tensors).to(tl.pointer_type(TYPE)) + first
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start


@triton.jit
def _read(start, inside, WIDE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    if MASKED:
        value = tl.load(start + tl.arange(0, BLOCK), mask=inside, other=0)
    else:
        value = tl.load(start + tl.arange(0, BLOCK))
    return value.to(WIDE)


@triton.jit
def _write(start, value, inside, TYPE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    if MASKED:
        tl.store(start + tl.arange(0, BLOCK), value.to(TYPE), mask=inside)
    else:
        tl.store(start + tl.arange(0, BLOCK), value.to(TYPE))


@triton.jit
def _places(geometry, first, BLOCK: tl.constexpr):
    """Row, column and tap of a block's entries."""
    place = first + tl.arange(0, BLOCK)
    row = divided(place, geometry + 9)
    within = place - row * tl.load(geometry + 1)
    outer = divided(within, geometry + 11)
    inner = within - outer * tl.load(geometry + 2)
    if tl.load(geometry + 5) != 0:
        tap, column = outer, inner
    else:
        tap, column = inner, outer
    return row, column, tap


@triton.jit
def _entry(geometry, entry, values, row, column, tap, inside, WIDE: tl.constexpr, MASKED: tl.constexpr):
    """The factors of one entry of the table; 0 where it does not reach."""
    at = tl.load(entry) + row * tl.load(entry + 1) + tap * tl.load(entry + 2)
    if MASKED:
        value = tl.load(values + at, mask=inside, other=0).to(WIDE)
    else:
        value = tl.load(values + at).to(WIDE)
    width = tl.load(entry + 4)
    if width > 0:  # on a block diagonal
        row_of_group = tl.load(geometry + 4) + row
        height = tl.load(geometry + 3)
        if height > 0:
            row_of_group = row_of_group % height
        if width == 1 and tl.load(entry + 3) == 1:  # an identity
            value = tl.where(column == row_of_group, value, 0.0)
        else:
            value = tl.where(column // width == row_of_group // tl.load(entry + 3), value, 0.0)
    return value


@triton.jit
def _factor(
    geometry,
    values,
    first,
    inside,
    ENTRIES: tl.constexpr,
    WIDE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of all entries' factors; 1 for a tensor without any."""
    total = tl.full((BLOCK,), 1.0, WIDE)
    count = tl.load(geometry + 8)
    if count > 0:
        row, column, tap = _places(geometry, first, BLOCK)
        entry = geometry + 13
        total = _entry(geometry, entry, values, row, column, tap, inside, WIDE, MASKED)
        for number in tl.static_range(1, ENTRIES):
            if number < count:
                total += _entry(geometry, entry + 5 * number, values, row, column, tap, inside, WIDE, MASKED)
    return total


@triton.jit
def _one_less_exp(x):
    """1 - e^x, by its series where the difference would cancel: 1 - beta^t at the first steps."""
    series = 1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8)))
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * series)))
    return tl.where(x > -0.1, series, 1 - tl.exp(x))


@triton.jit
def _adam_update(
    m,
    root,
    eps,
    geometry,
    values,
    first,
    inside,
    ENTRIES: tl.constexpr,
    WIDE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum over branches, sum_b embed_b( s_b^2 m / (|s_b| root + eps) )."""
    count = tl.load(geometry + 8)
    if count == 0:
        update = m / (root + eps)
    else:
        update = tl.zeros((BLOCK,), WIDE)
        row, column, tap = _places(geometry, first, BLOCK)
        entry = geometry + 13
        for number in tl.static_range(ENTRIES):
            if number < count:
                s = _entry(geometry, entry + 5 * number, values, row, column, tap, inside, WIDE, MASKED)
                update += tl.where(s > 0, s * s * m / (s * root + eps), 0.0)
    return update


@triton.jit
def _step_block(
    geometry,
    values,
    arrays,
    numbers,
    grad_scale,
    clip,
    tensors,
    first,
    numel,
    ARRAYS: tl.constexpr,
    ENTRIES: tl.constexpr,
    RULE: tl.constexpr,
    HAS_MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    AMSGRAD: tl.constexpr,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SCALED: tl.constexpr,
    CLIPPED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    inside = first + tl.arange(0, BLOCK) < numel
    lr, decay, sign = tl.load(numbers).to(WIDE), tl.load(numbers + 1).to(WIDE), tl.load(numbers + 2).to(WIDE)
    at_weight = _array(arrays, 0, tensors, first, TYPE, ALIGNED)
    at_grad = _array(arrays, 1, tensors, first, TYPE, ALIGNED)
    w = _read(at_weight, inside, WIDE, MASKED, BLOCK)
    g = _read(at_grad, inside, WIDE, MASKED, BLOCK)
    if ARRAYS > 2:
        at_first = _array(arrays, 2, tensors, first, TYPE, ALIGNED)
        m = _read(at_first, inside, WIDE, MASKED, BLOCK)
    if SCALED:  # a gradient that GradScaler scaled is left unscaled, as torch's fused optimizers leave it
        g = g / tl.load(grad_scale).to(WIDE)
        _write(at_grad, g, inside, TYPE, MASKED, BLOCK)
    if CLIPPED:
        g = g * tl.load(clip).to(WIDE)
    g = g * sign
    if RULE == "sgd":
        g = g * _factor(geometry, values, first, inside, ENTRIES, WIDE, MASKED, BLOCK) + decay * w
        if HAS_MOMENTUM:
            momentum, kept = tl.load(numbers + 3).to(WIDE), tl.load(numbers + 4).to(WIDE)
            buffer = tl.where(m == m, momentum * m + kept * g, g)  # not a number: there was no step yet
            _write(at_first, buffer, inside, TYPE, MASKED, BLOCK)
            if NESTEROV:
                g = g + momentum * buffer
            else:
                g = buffer
        w = w - lr * g
    if RULE == "lion":
        now, later = tl.load(numbers + 3).to(WIDE), tl.load(numbers + 4).to(WIDE)  # 1 - beta1, 1 - beta2
        mean = m + now * (g - m)
        factor = _factor(geometry, values, first, inside, ENTRIES, WIDE, MASKED, BLOCK)
        update = tl.where(mean > 0, factor, tl.where(mean < 0, -factor, 0.0))
        w = w * (1 - lr * decay) - lr * update
        _write(at_first, m + later * (g - m), inside, TYPE, MASKED, BLOCK)
    if RULE == "adam":
        at_second = _array(arrays, 3, tensors, first, TYPE, ALIGNED)
        v = _read(at_second, inside, WIDE, MASKED, BLOCK)
        steps = tl.load(tl.load(arrays + 4 * tensors).to(tl.pointer_type(tl.float32))).to(WIDE)
        now, later = tl.load(numbers + 3).to(WIDE), tl.load(numbers + 4).to(WIDE)  # 1 - beta1, 1 - beta2
        log_beta1, log_beta2 = tl.load(numbers + 5).to(WIDE), tl.load(numbers + 6).to(WIDE)
        eps = tl.load(numbers + 7).to(WIDE)
        m = m + now * (g - m)
        v = v + later * (g * g - v)
        _write(at_first, m, inside, TYPE, MASKED, BLOCK)
        _write(at_second, v, inside, TYPE, MASKED, BLOCK)
        if AMSGRAD:
            at_largest = _array(arrays, 5, tensors, first, TYPE, ALIGNED)
            v = tl.maximum(v, _read(at_largest, inside, WIDE, MASKED, BLOCK))
            _write(at_largest, v, inside, TYPE, MASKED, BLOCK)
        root = tl.sqrt(v) * (1 / tl.sqrt(_one_less_exp(steps * log_beta2)))
        update = _adam_update(m, root, eps, geometry, values, first, inside, ENTRIES, WIDE, MASKED, BLOCK)
        w = w * (1 - lr * decay) - lr / _one_less_exp(steps * log_beta1) * update
    _write(at_weight, w, inside, TYPE, MASKED, BLOCK)


@triton.jit(do_not_specialize=["tensors"])
def step(
    programs,
    geometry,
    values,
    table,
    scalars,
    grad_scale,
    found_inf,
    clip,
    tensors,
    ARRAYS: tl.constexpr,
    ENTRIES: tl.constexpr,
    NUMBERS: tl.constexpr,
    RULE: tl.constexpr,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SCALED: tl.constexpr,
    SKIPS: tl.constexpr,
    CLIPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_MOMENTUM: tl.constexpr = False,
    NESTEROV: tl.constexpr = False,
    AMSGRAD: tl.constexpr = False,
):
    """Steps one block of one tensor."""
    program = tl.program_id(0)
    tensor = tl.load(programs + program // SHARED).to(tl.int32)
    geometry += (13 + 5 * ENTRIES) * tensor
    arrays = table + tensor
    numel = tl.load(geometry)
    numbers = scalars + NUMBERS * tl.load(geometry + 6)
    first = (program - tl.load(geometry + 7)) * BLOCK
    skips = False
    if SKIPS:
        skips = tl.load(found_inf) != 0
    if not skips:
        if first + BLOCK <= numel:
            _step_block(
                geometry, values, arrays, numbers, grad_scale, clip, tensors, first, numel,
                ARRAYS, ENTRIES, RULE, HAS_MOMENTUM, NESTEROV, AMSGRAD,
                TYPE, WIDE, ALIGNED, SCALED, CLIPPED, False, BLOCK,
            )  # fmt: skip
        elif first < numel:
            _step_block(
                geometry, values, arrays, numbers, grad_scale, clip, tensors, first, numel,
                ARRAYS, ENTRIES, RULE, HAS_MOMENTUM, NESTEROV, AMSGRAD,
                TYPE, WIDE, ALIGNED, SCALED, CLIPPED, True, BLOCK,
            )  # fmt: skip
