"""The product g * M on a GPU, in one pass over the gradient.

TensorIterator needs three kernels for it, none of which runs at the memory's speed: a product with broadcasting, and a
read and a write of the diagonal. Here a program multiplies a piece of one row, where the identity is one known entry.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _multiply_rows(
    grad,
    taps,
    identity,
    size,
    row_stride,
    taps_stride,
    centre,
    channels,
    first,
    CHANNELS_LAST: tl.constexpr,
    COUNT: tl.constexpr,
    HAS_IDENTITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    column = (first + row) % channels
    if CHANNELS_LAST:
        tap = tl.program_id(2)
        factor = tl.load(taps + row * taps_stride + tap) + tl.zeros((BLOCK,), taps.dtype.element_ty)
        on_diagonal = (place == column) & (tap == centre)
        offset = row.to(tl.int64) * row_stride + tap * channels + place
    else:
        factor = tl.load(taps + row * taps_stride + place % COUNT, mask=inside)
        on_diagonal = place == column * COUNT + centre
        offset = row.to(tl.int64) * row_stride + place
    if HAS_IDENTITY:
        factor = tl.where(on_diagonal, factor + tl.load(identity), factor)
    value = tl.load(grad + offset, mask=inside)
    tl.store(grad + offset, (value * factor).to(value.dtype), mask=inside)


def multiply_rows_(grad: Tensor, taps: Tensor, identity: Tensor | None, first: int) -> bool:
    """Multiplies a gradient by its taps and its identity, in place.

    Args:
        grad: the gradient.
        taps: (rows or 1, 1, *taps).
        identity: what an identity adds, a number on the device; None where there is none.
        first: the number of the gradient's first row in the whole kernel.

    Returns:
        False, and nothing is done, for a layout other than contiguous and channels_last.
    """
    channels, count = grad.shape[1], grad.shape[2:].numel()
    contiguous = grad.is_contiguous()
    channels_last = grad.ndim == 4 and grad.is_contiguous(memory_format=torch.channels_last)
    if not (contiguous or channels_last) or not grad.numel():
        return False
    size = channels * count if contiguous else channels
    block = min(_BLOCK, triton.next_power_of_2(size))
    grid = (grad.shape[0], triton.cdiv(size, block), 1 if contiguous else count)
    _multiply_rows[grid](
        grad,
        taps,
        taps if identity is None else identity,
        size,
        channels * count,
        count if taps.shape[0] > 1 else 0,
        count // 2,
        channels,
        first,
        CHANNELS_LAST=not contiguous,
        COUNT=count,
        HAS_IDENTITY=identity is not None,
        BLOCK=block,
    )
    return True
