"""A CPU's step in one pass over its memory: torch's compiler writes the loop, where the machine has a C++ compiler.

    update_(W', g, states, factors, numbers)

Arrays are seen as (rows, pieces, entries): the entries of a piece lie side by side in memory, and all pieces of a row
have the same factors. So the loop over entries is vectorized, and one loop serves operators of many sizes. Entries on a
diagonal have factors of their own: they are read before the pass and stepped apart.
"""

import functools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repopt.device import own_vectors
from repopt.optim.kernels.launches import Entry, has_channels_last

# An optimizer with fewer elements does not repay the seconds of compilation.
_WORTH_COMPILING = 1 << 22

# Input channels that are stepped side by side: of a contiguous kernel, whose taps alone are too few to vectorize, and
# of one with taps first.
_TILES = 16, 128

# Entries of a piece that are worth a vectorized loop, and loops for a rule: torch stops compiling a function at 8.
_SHORTEST = 32
_MOST_VARIANTS = 7
_VARIANTS: dict["Update", set[Any]] = defaultdict(set)

Update = Callable[..., None]  # of weight, gradient, states, factors, numbers and flags; weight and states in place


def one_pass(
    update_: Update, flags: dict[str, bool], weight: Tensor, entries: Sequence[Entry], height: int, first_row: int
) -> "OnePass | None":
    """The step of a weight as one pass; None where its pieces are short, or too many loops were compiled before."""
    _, pieces, length = _pieces(weight)
    filling = tuple((entry.row_stride > 0, entry.tap_stride > 0) for entry in entries if not entry.width)
    variant = (length, pieces > 1, weight.dtype, filling, *flags.items())
    known = _VARIANTS[update_]
    if length < _SHORTEST or (variant not in known and len(known) >= _MOST_VARIANTS):
        return None
    known.add(variant)
    return OnePass(update_, flags, weight, entries, height, first_row)


class OnePass:
    """The step of one parameter.

    Args:
        update_: the rule.
        flags: its options.
        weight: the rows held here.
        entries: what multiplies it, as a kernel's table has it.
        height: the rows of a group.
        first_row: the number of the first row held here.
    """

    def __init__(
        self,
        update_: Update,
        flags: dict[str, bool],
        weight: Tensor,
        entries: Sequence[Entry],
        height: int,
        first_row: int,
    ) -> None:
        self._update_, self._flags = update_, flags
        self._taps_last = not has_channels_last(weight)
        self._shape = _pieces(weight)
        filling = [_matrix(entry).to(weight) for entry in entries if not entry.width]
        self._factors = [self._over_pieces(factors, weight) for factors in filling]
        self._places, self._own_factors = self._diagonal(weight, entries, filling, height, first_row)

    def step_(self, weight: Tensor, grad: Tensor, states: Sequence[Tensor], numbers: Sequence[Tensor]) -> None:
        """Steps weight and states in place; all arrays are laid out as the weight."""
        arrays = [self._seen(array) for array in (weight, grad, *states)]
        for array in (*arrays, *self._factors):
            _mark_sizes(array)
        places = self._places
        apart = None if places is None else [array.view(-1)[places] for array in arrays]
        _take_(self._update_, arrays[0], arrays[1], arrays[2:], self._factors, numbers, **self._flags)
        if apart is not None:
            self._update_(apart[0], apart[1], apart[2:], self._own_factors, numbers, **self._flags)
            for array, values in zip((arrays[0], *arrays[2:]), (apart[0], *apart[2:]), strict=True):
                array.view(-1)[places] = values

    @property
    def nbytes(self) -> int:
        kept = [*self._factors, *self._own_factors, *([] if self._places is None else [self._places])]
        return sum(each.nbytes for each in kept)

    def _seen(self, array: Tensor) -> Tensor:
        flat = array.detach() if self._taps_last else array.detach().movedim(1, -1)
        return flat.reshape(self._shape)

    def _over_pieces(self, factors: Tensor, weight: Tensor) -> Tensor:
        """Factors by row and tap in the shape of a row's pieces."""
        taps = max(weight.shape[2:].numel(), 1)
        if not self._taps_last:
            return factors.expand(weight.shape[0], taps).reshape(-1, 1, 1)
        alike = factors.shape[1] == 1
        return (factors if alike else factors.repeat(1, self._shape[2] // taps))[:, None, :]

    def _diagonal(
        self, weight: Tensor, entries: Sequence[Entry], filling: Sequence[Tensor], height: int, first_row: int
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Where entries lie that a block diagonal reaches, and their factors, one of each entry of the table."""
        diagonals = [entry for entry in entries if entry.width]
        if not diagonals:
            return None, []
        rows, channels, taps = weight.shape[0], weight.shape[1], max(weight.shape[2:].numel(), 1)
        in_group = (first_row + torch.arange(rows, device="cpu")) % height
        on = [
            in_group[:, None] // each.height == torch.arange(channels, device="cpu") // each.width for each in diagonals
        ]
        reached = torch.stack([_matrix(each).expand(-1, taps).any(0) for each in diagonals]).any(0).nonzero()[:, 0]
        row, column = functools.reduce(torch.logical_or, on).nonzero(as_tuple=True)
        tap = reached.repeat(len(row))
        row, column = (each.repeat_interleave(len(reached)) for each in (row, column))
        factors = [
            *(_matrix_at(each, row, tap) for each in filling),
            *(
                _matrix_at(_matrix(each), row, tap) * mask[row, column]
                for each, mask in zip(diagonals, on, strict=True)
            ),
        ]
        inner = column * taps + tap if self._taps_last else tap * channels + column
        return row * channels * taps + inner, [each.to(weight) for each in factors]


def _pieces(weight: Tensor) -> tuple[int, int, int]:
    rows, channels, taps = weight.shape[0], weight.shape[1], max(weight.shape[2:].numel(), 1)
    if has_channels_last(weight) or taps == 1:
        tile = _tile(channels, _TILES[1])
        return rows * taps, channels // tile, tile
    tile = _tile(channels, _TILES[0])
    return rows, channels // tile, tile * taps


def _tile(channels: int, most: int) -> int:
    return channels if channels <= most else math.gcd(channels, most)


def _matrix(entry: Entry) -> Tensor:
    """An entry's values by row and tap; one where they are all alike."""
    taps = entry.row_stride if entry.tap_stride and entry.row_stride else len(entry.values) if entry.tap_stride else 1
    return entry.values.view(-1, taps)


def _matrix_at(values: Tensor, row: Tensor, tap: Tensor) -> Tensor:
    return values[row if len(values) > 1 else 0, tap if values.shape[1] > 1 else 0].expand_as(row)


_REFUSED: set[Update] = set()


def _take_(update_: Update, *arrays: Any, **flags: bool) -> None:
    """Takes a step by the compiled rule; by the rule as it is, more slowly, where it cannot be compiled."""
    from torch._dynamo.exc import TorchDynamoException

    if update_ not in _REFUSED:
        try:
            return _compiled(update_)(*arrays, **flags)
        except TorchDynamoException as error:  # before anything was written
            _REFUSED.add(update_)
            warnings.warn(
                "torch cannot compile the optimizer's step for this CPU, so steps take longer "
                f"({type(error).__name__}; TORCHINDUCTOR_CACHE_DIR may hold files of another processor)",
                stacklevel=2,
            )
    update_(*arrays, **flags)


@functools.cache
def _compiled(update_: Update) -> Update:
    # What is used twice would get memory of its own, and the pass become several.
    whole: dict[str, Any] = {"realize_reads_threshold": 1000, "realize_opcount_threshold": 1000}
    return torch.compile(update_, dynamic=False, options={**whole, **own_vectors()})


def _mark_sizes(array: Tensor) -> None:
    """Lets one loop serve any number of rows and pieces."""
    from torch._dynamo import maybe_mark_dynamic

    for dim in (0, 1):
        if array.shape[dim] > 1:
            maybe_mark_dynamic(array, dim)


@functools.cache
def has_compiler() -> bool:
    """Whether torch can compile for this CPU, which needs a C++ compiler and Python's headers: tried once."""
    try:
        torch.compile(lambda x: x + 1, options=own_vectors())(torch.zeros(64, device="cpu"))
    except Exception:
        return False
    return True


def is_worth_it(elements: int) -> bool:
    return elements >= _WORTH_COMPILING and has_compiler()
