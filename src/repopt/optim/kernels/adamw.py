"""The closed-form AdamW step on a GPU, in one pass over parameter, gradient and moments.

A program steps a piece of one row. There each branch has one scale and reaches known taps, and the identity is one
known entry, so the sum over branches is taken in registers.
"""

# mypy: disable-error-code="no-untyped-def"

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repopt.algebra.branches import Entries

_BLOCK = 1024


@triton.jit
def _one_less_exp(x):
    """1 - e^x, by its series where the difference would cancel: 1 - beta^t at the first steps."""
    series = -x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return tl.where(x > -0.1, series, 1 - tl.exp(x))


@triton.jit
def _adamw_rows(
    param,
    grad,
    first,
    second,
    sizes,
    reach,
    steps,
    lr,
    decay,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    eps,
    size,
    rows,
    channels,
    first_row,
    centre,
    CHANNELS_LAST: tl.constexpr,
    COUNT: tl.constexpr,
    BRANCHES: tl.constexpr,
    HAS_IDENTITY: tl.constexpr,
    STEPS_ON_DEVICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    column = (first_row + row) % channels
    if CHANNELS_LAST:
        tap = tl.program_id(2) + tl.zeros((BLOCK,), tl.int32)
        on_diagonal = (place == column) & (tap == centre)
        offset = row.to(tl.int64) * channels * COUNT + tl.program_id(2) * channels + place
    else:
        tap = place % COUNT
        on_diagonal = place == column * COUNT + centre
        offset = row.to(tl.int64) * channels * COUNT + place
    if STEPS_ON_DEVICE:
        steps = tl.load(steps)
    g = tl.load(grad + offset, mask=inside).to(tl.float32)
    m = tl.load(first + offset, mask=inside).to(tl.float32)
    v = tl.load(second + offset, mask=inside).to(tl.float32)
    p = tl.load(param + offset, mask=inside).to(tl.float32)
    m = m + (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    root = tl.sqrt(v) / tl.sqrt(_one_less_exp(steps * log_beta2))
    update = tl.zeros((BLOCK,), tl.float32)
    for branch in tl.static_range(BRANCHES):
        s = tl.load(sizes + branch * rows + row)
        reached = tl.load(reach + branch * COUNT + tap) != 0
        update += tl.where(reached, s * s * m / (s * root + eps), 0.0)
    if HAS_IDENTITY:
        update += tl.where(on_diagonal, m / (root + eps), 0.0)
    p = p * (1 - lr * decay) - lr / _one_less_exp(steps * log_beta1) * update
    tl.store(param + offset, p.to(param.dtype.element_ty), mask=inside)
    tl.store(first + offset, m.to(first.dtype.element_ty), mask=inside)
    tl.store(second + offset, v.to(second.dtype.element_ty), mask=inside)


class RowsOfScales:
    """A block's scales as the kernel reads them: |s| by branch and row, and the taps that each branch reaches."""

    def __init__(self, branches: Sequence[Entries], param: Tensor, first_row: int) -> None:
        filling = [entries for entries in branches if entries.placement.fills_groups]
        others = [entries for entries in branches if not entries.placement.fills_groups]
        self.takes = len(others) <= 1 and all(entries.placement.is_identity for entries in others)
        self.has_identity = bool(others)
        self.first_row = first_row
        rows, taps = param.shape[0], param.shape[2:]
        sizes = [entries.values.float().flatten().expand(rows) for entries in filling]
        reach = torch.zeros(max(len(filling), 1), *taps, dtype=torch.int32)
        for reached, entries in zip(reach, filling, strict=False):
            reached[entries.placement.taps] = 1
        self.branches = len(filling)
        self.sizes = torch.stack(sizes) if sizes else param.new_zeros((), dtype=torch.float32)
        self.reach = reach.to(param.device)

    @property
    def nbytes(self) -> int:
        return self.sizes.nbytes + self.reach.nbytes


def adamw_rows_(
    param: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor | float,
    scales: RowsOfScales,
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """One step of a planned parameter; all tensors contiguous, or all channels_last."""
    channels, count = param.shape[1], param.shape[2:].numel()
    contiguous = param.is_contiguous()
    size = channels * count if contiguous else channels
    block = min(_BLOCK, triton.next_power_of_2(size))
    grid = (param.shape[0], triton.cdiv(size, block), 1 if contiguous else count)
    logs = [math.log(beta) if beta else -math.inf for beta in betas]
    _adamw_rows[grid](
        param,
        grad,
        first,
        second,
        scales.sizes,
        scales.reach,
        step,
        lr,
        weight_decay,
        *betas,
        *logs,
        eps,
        size,
        param.shape[0],
        channels,
        scales.first_row,
        count // 2,
        CHANNELS_LAST=not contiguous,
        COUNT=count,
        BRANCHES=scales.branches,
        HAS_IDENTITY=scales.has_identity,
        STEPS_ON_DEVICE=isinstance(step, Tensor),
        BLOCK=block,
    )


def is_dense_in_rows(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors have one of the two layouts that the kernel takes, and the same one."""
    return all(tensor.is_contiguous() for tensor in tensors) or (
        tensors[0].ndim == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    )
