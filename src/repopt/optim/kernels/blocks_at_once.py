"""The blocks of many operators on a GPU: the tables that `spreading` reads, and its two launches."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
import triton.language as tl
from torch import Tensor

from repopt.algebra.branches import Placement
from repopt.optim.kernels.addresses import WordTable, are_aligned
from repopt.optim.kernels.dividing import divider
from repopt.optim.kernels.gradients import PassingGradients
from repopt.optim.kernels.launches import BLOCK
from repopt.optim.kernels.relaunching import Relaunched
from repopt.optim.kernels.spreading import BRANCH_NUMBERS, merge, spread

_DTYPE = attrgetter("dtype")


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
            geometry.append(numbers + BRANCH_NUMBERS.value * padding)
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
        options = {
            "BRANCHES": most,
            "COMPUTE": tl.float64 if like.dtype == torch.float64 else tl.float32,
            "BLOCK": BLOCK,
            "PART": BLOCK // 4,
        }
        self._spread = Relaunched(spread, len(own_programs), like.device, options)
        self._merge = Relaunched(merge, len(programs), like.device, options)

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads the tables, which must then be kept."""
        return self._sources.is_captured or self._targets.is_captured

    def spread(self, grads: Sequence[Tensor | None]) -> None:
        """Gives each kernel its gradient, in memory that all of them share; None where the weight has none."""
        grads = self._laid_out(grads)
        words = _addresses(grads)
        sources, flat = self._sources.of(words), self._grads.memory()
        tensors = [self._own_programs, *self._tables, sources, self._places, flat]
        self._spread(tensors, ALIGNED=are_aligned(words))
        self._grads.give()
        for block, word in zip(self._blocks, words, strict=True):
            if word == 0:
                for each in block:
                    each.kernel.grad = None

    def merge_into_(self, targets: Sequence[Tensor | None]) -> None:
        """Writes what the kernels make into tensors of the weights' layouts; None leaves an operator out."""
        words = _addresses(targets)
        table, aligned = self._targets.of(words), self._are_kernels_aligned and are_aligned(words)
        self._merge([self._programs, *self._tables, table, self._kernels], ALIGNED=aligned)
        torch.autograd.graph.increment_version([target for target in targets if target is not None])

    def release(self) -> None:
        """Takes the gradients from the kernels."""
        self._grads.release()

    def _laid_out(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients as the weights lie in memory."""
        try:
            strides, dtypes = list(map(Tensor.stride, grads)), set(map(_DTYPE, grads))  # type: ignore[arg-type]
            if strides == self._strides and dtypes == {self._like.dtype}:
                return grads
        except (TypeError, RuntimeError):  # one is None, or sparse
            pass
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
    taps: list[int] = torch.arange(sizes.numel(), device="cpu").view(sizes)[placement.taps].flatten().tolist()
    return taps


def _own_taps(placement: Placement) -> list[int]:
    """The branch's tap at each of the operator's, -1 for none."""
    sizes = torch.Size(placement.operator.kernel_size)
    own = torch.full(sizes, -1, device="cpu")
    reached = own[placement.taps]
    own[placement.taps] = torch.arange(reached.numel(), device="cpu").view_as(reached)
    taps: list[int] = own.flatten().tolist()
    return taps
