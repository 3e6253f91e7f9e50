"""Division without a division, which would take longer than the memory: by a product and a shift."""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def divided(n, divider):
    """The quotient of numbers below 2^31; the divider lies in a table, as `divider` gives it."""
    high = tl.umulhi(n.to(tl.uint32), tl.load(divider).to(tl.uint32))
    return ((high + n.to(tl.uint32)) >> tl.load(divider + 1).to(tl.uint32)).to(tl.int32)


def divider(divisor: int) -> tuple[int, int]:
    """Factor and shift with which n // divisor == (high half of n * factor + n) >> shift, for n below 2^31."""
    shift = (divisor - 1).bit_length()
    factor = (((1 << shift) - divisor) << 32) // divisor + 1
    return factor - (1 << 32) if factor >= 1 << 31 else factor, shift  # as a signed number of 32 bits
