"""One launch for many tensors: the tables that tell each program of a kernel what it works on.

    programs    which tensor, one number for every SHARED programs
    geometry    a tensor's size, its rows, channels and taps, its param group, and its entries
    entries     what multiplies a tensor: values by row and tap, and on which block diagonal of channels they lie
    table       the addresses of all weights, gradients and states, then the numbers of each param group

The table is uploaded again only when an address or a number has changed.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repopt.algebra.branches import Placement
from repopt.algebra.multiplier import grad_mult
from repopt.algebra.sharding import local_rows
from repopt.optim.kernels.addresses import WordTable, are_aligned
from repopt.plans.planning import Plan

BLOCK = 512  # 4 floats a thread, 16 bytes at once: 6% faster than 1024 on an H200 with a cold cache
SHARED = 32  # programs that read one number of their table: each tensor has a multiple of it, the last ones idle

_PLAIN = {float, int, bool}

_TRITON = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Row(NamedTuple):
    """A parameter that is stepped.

    Attributes:
        place: its number among all that are stepped.
        group: the number of its param group.
        name: of its operator; None for a parameter outside the plan.
        rows: those that this rank holds; None for a parameter that is not sharded.
    """

    place: int
    group: int
    name: str | None
    param: Tensor
    states: tuple[Tensor, ...]
    rows: range | None


class Entry(NamedTuple):
    """Factors of one tensor: values[row * row_stride + tap * tap_stride].

    With a width they lie on a block diagonal: where column // width == row // height, the row counted in its group.
    """

    values: Tensor
    row_stride: int
    tap_stride: int
    height: int
    width: int


def address_of(tensor: Tensor) -> int:
    """Where a tensor, or what this rank holds of it, begins."""
    return local_rows(tensor)[0].data_ptr()


def takes(local: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a kernel can step a tensor: dense, and gradient and states laid out like it."""
    dense = local.is_contiguous() or has_channels_last(local)
    return (
        dense
        and 0 < local.numel() < 2**31 - SHARED * BLOCK
        and local.dtype in _TRITON
        and all(each.stride() == local.stride() and each.dtype == local.dtype for each in others if each.ndim)
    )


def has_channels_last(tensor: Tensor) -> bool:
    """Whether a kernel lies in memory as rows, taps, channels: channels_last, of any dimension."""
    return tensor.ndim > 2 and tensor.movedim(1, -1).is_contiguous()


class Launch:
    """The launch that steps some tensors of one device and dtype, as long as weights and states stay where they are."""

    def __init__(
        self, rows: list[Row], plan: Plan, *, rule: str, degree: float | None, flags: Mapping[str, bool]
    ) -> None:
        import triton.language as tl

        from repopt.optim.kernels.closed_forms import step
        from repopt.optim.kernels.relaunching import Relaunched

        self.rows = rows
        dtype = rows[0].param.dtype
        wide = torch.promote_types(dtype, torch.float32)
        constants = {
            "ARRAYS": 2 + len(rows[0].states),
            "RULE": rule,
            "TYPE": getattr(tl, _TRITON[dtype]),
            "WIDE": getattr(tl, _TRITON[wide]),
            "BLOCK": BLOCK,
            "SHARED": SHARED,
            **{name.upper(): flag for name, flag in flags.items()},
            "num_warps": 4,
        }
        factors = [[] if row.name is None else entries_of_block(plan, row.name, degree, row.rows) for row in rows]
        constants["ENTRIES"] = most = max(1, *map(len, factors))
        values = [torch.zeros(1, dtype=torch.float64, device="cpu")]
        geometry: list[list[int]] = []
        programs: list[int] = []
        for number, (row, entries) in enumerate(zip(rows, factors, strict=True)):
            local = local_rows(row.param)[0]
            numbers = _geometry(local, row, plan, first_program=SHARED * len(programs), entries=len(entries))
            for entry in entries:
                numbers += [sum(map(len, values)), *entry[1:]]
                values.append(entry.values)
            geometry.append(numbers + [0] * 5 * (most - len(entries)))
            programs += [number] * -(-local.numel() // (SHARED * BLOCK))
        device = local_rows(rows[0].param)[0].device
        self._values = torch.cat(values).to(device, wide)
        self._geometry = torch.tensor(geometry, dtype=torch.int32, device=device)
        self._programs = torch.tensor(programs, device=device).to(torch.int16 if len(rows) < 2**15 else torch.int32)
        self._table = WordTable(device)
        self._uploaded = torch.empty(0), torch.empty(0), False
        self._flat: list[float] = []  # the numbers of all groups, and their bits
        self._bits: tuple[int, ...] = ()
        self._launch = Relaunched(step, SHARED * len(programs), device, constants)
        self._params = [row.param for row in rows]
        # The table has all weights, then all gradients, then all of each state.
        self._weights = list(map(address_of, self._params))
        self._states = [
            address_of(state) for states in zip(*(row.states for row in rows), strict=True) for state in states
        ]

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads the tables."""
        return self._table.is_captured

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self._values, self._geometry, self._programs, self._table))

    def run(
        self,
        grads: Sequence[Tensor],
        numbers: Sequence[Sequence[float | Tensor]],
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        clip: Tensor | None,
    ) -> None:
        """Launches the kernel.

        Args:
            grads: of the rows, in their order; of sharded ones what this rank holds.
            numbers: what the rule reads of each param group.
            grad_scale: what GradScaler multiplied the gradients by.
            found_inf: not 0 where they overflowed, so that nothing is to be done.
            clip: what the gradients are to be multiplied by.
        """
        table, scalars, aligned = self._upload(grads, numbers)
        given = [scalars if each is None else each.to(self._values) for each in (grad_scale, found_inf, clip)]
        self._launch(
            [self._programs, self._geometry, self._values, table, scalars, *given],
            [len(self._params)],
            NUMBERS=len(numbers[0]),
            ALIGNED=aligned,
            SCALED=grad_scale is not None,
            SKIPS=found_inf is not None,
            CLIPPED=clip is not None,
        )
        torch.autograd.graph.increment_version(self._params if grad_scale is None else [*self._params, *grads])

    def _upload(
        self, grads: Sequence[Tensor], numbers: Sequence[Sequence[float | Tensor]]
    ) -> tuple[Tensor, Tensor, bool]:
        """The table on the device, the numbers in it, and whether all addresses are multiples of 16 bytes."""
        addresses = [*self._weights, *map(Tensor.data_ptr, grads), *self._states]
        flat = [each for group in numbers for each in group]
        moving: dict[int, Tensor] = {}
        if not set(map(type, flat)) <= _PLAIN or flat != self._flat:
            moving = {at: each for at, each in enumerate(flat) if isinstance(each, Tensor) and not each.is_cpu}
            self._flat = [0.0 if at in moving else float(each) for at, each in enumerate(flat)]
            self._bits = struct.unpack(f"{len(flat)}q", struct.pack(f"{len(flat)}d", *self._flat))
        table = self._table.of([*addresses, *self._bits])
        if table is not self._uploaded[0]:
            numbers_in_it = table[len(addresses) :].view(torch.float64)
            self._uploaded = table, numbers_in_it, are_aligned(addresses)
        for at, each in moving.items():
            self._uploaded[1][at].copy_(each)
        return self._uploaded


def _geometry(local: Tensor, row: Row, plan: Plan, *, first_program: int, entries: int) -> list[int]:
    """What the kernel knows of a tensor.

    Elements, those of a row and of a channel (or of a tap, where taps come first), the rows of a group (0 for a single
    group), the first row, whether taps come first, the param group, the first program, the number of entries, what
    divides by the elements of a row and by those of a channel. The entries follow.
    """
    from repopt.optim.kernels.dividing import divider

    size, inner, height, first, taps_first = 1, 1, 0, 0, False
    if row.name is not None:
        operator = plan.blocks[row.name].operator
        taps_first = not local.is_contiguous()
        size, inner = local[0].numel(), local.shape[1] if taps_first else local.shape[2:].numel()
        height = operator.out_channels // operator.groups if operator.groups > 1 else 0
        first = 0 if row.rows is None else row.rows.start
    shape = [local.numel(), size, inner, height, first, int(taps_first), row.group, first_program, entries]
    return [*shape, *divider(size), *divider(inner)]


def entries_of_block(plan: Plan, name: str, degree: float | None, rows: range | None) -> list[Entry]:
    """A block's factors: |s| of each branch, or the powers of all branches that fill the groups as one."""
    block, constants = plan.blocks[name], plan.constants(name)
    held = slice(None) if rows is None else slice(rows.start, rows.stop)
    power = 1 if degree is None else 1 + degree
    alone = [
        _entry(placement, constants[branch].double().abs().pow(power), held)
        for branch, placement in block.branches.items()
        if degree is None or not placement.fills_groups
    ]
    if degree is None:
        return alone
    taps = grad_mult(block, constants, degree=degree, dtype=torch.float64, rows=rows).taps
    count = taps[0].numel()
    return [Entry(taps.flatten(), count if len(taps) > 1 else 0, 1, 0, 0), *alone]


def _entry(placement: Placement, values: Tensor, held: slice) -> Entry:
    operator = placement.operator
    reach = torch.zeros(operator.kernel_size, dtype=torch.float64, device="cpu")
    reach[placement.taps] = 1
    size = 0, 0
    if not placement.fills_groups:
        size = operator.out_channels // placement.groups, operator.in_channels // placement.groups
    values = values[held] if values.ndim else values.view(1)
    one_a_row = int(values.numel() > 1)
    if reach.all():
        return Entry(values, one_a_row, 0, *size)
    return Entry(torch.outer(values, reach.flatten()).flatten(), one_a_row * reach.numel(), 1, *size)
