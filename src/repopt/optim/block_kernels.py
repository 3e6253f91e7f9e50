"""The kernels of the imagined blocks, and the optimizer's state of each: what the branch route keeps and sums."""

import weakref
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.device import takes_kernels
from repopt.optim.fingerprints import is_constant
from repopt.optim.kernels.launches import takes
from repopt.plans.planning import Plan


class BlockKernels:
    """The kernels of one block, and the optimizer's state of each.

    Args:
        plan: a plan with scales.
        name: the operator's name.
        states: where the states are kept, by kernel; all blocks share it.

    Attributes:
        constants: the branches' scales, as the weight has its device and precision.
        mark: version and address of the weight when the kernels last made it; None if they did not.
    """

    def __init__(self, plan: Plan, name: str, states: dict[Tensor, Any]) -> None:
        self.name = name
        self.block = plan.blocks[name]
        self.kernels: dict[str, nn.Parameter] = {}
        self.constants: dict[str, Tensor] = {}
        self._states = states
        self._whole_constants = plan.constants(name)
        self._weight: weakref.ref[Tensor] | None = None
        self.mark: tuple[int, int] | None = None

    def start(self, weight: Tensor, kernels: Mapping[str, Tensor] | None) -> None:
        """From kernels of the block's own, or from the split of least norm."""
        self._weight = weakref.ref(weight)
        self.mark = None
        self.forget()
        self.constants = {branch: constant.to(weight) for branch, constant in self._whole_constants.items()}
        if kernels is None:
            kernels = csla.least_norm_split(self.block, self.constants, weight, self.name)
        else:
            csla.check_kernels(self.block, kernels, self.name)
        self.kernels = {
            branch: nn.Parameter(_laid_out_as(weight, kernels[branch].detach().to(weight, copy=True)))
            for branch in self.block.branches
        }

    def forget(self) -> None:
        """Drops the optimizer's states of the kernels."""
        for kernel in self.kernels.values():
            self._states.pop(kernel, None)

    def belongs_to(self, weight: Tensor) -> bool:
        return self._weight is not None and self._weight() is weight

    def adopt(self, state: Mapping[str, Any], weight: Tensor) -> None:
        """Gives each kernel what the optimizer's constructor left for the weight, such as Adagrad's first sum."""
        for key, value in state.items():
            if isinstance(value, Tensor) and not is_constant(value):
                raise ValueError(
                    f"the optimizer already holds a state of {self.name!r} ({key}) that the block cannot take over: "
                    "attach before the first step"
                )
        for kernel in self.kernels.values():
            self._states[kernel] = {
                key: torch.full_like(kernel, value.flatten()[0].item(), dtype=value.dtype)
                if isinstance(value, Tensor) and value.shape == weight.shape
                else (value.clone() if isinstance(value, Tensor) else value)
                for key, value in state.items()
            }

    def check_place(self, weight: Tensor) -> None:
        kernel = next(iter(self.kernels.values()))
        if (weight.device, weight.dtype) != (kernel.device, kernel.dtype):
            raise RuntimeError(
                f"the weight of {self.name!r} was moved or converted since attach: move the model first, then make and "
                "attach an optimizer"
            )

    def was_moved(self, weight: Tensor) -> bool:
        """Whether the weight lies elsewhere in memory than when it was noted, perhaps in another layout."""
        return self.mark is None or self.mark[1] != weight.data_ptr()

    def note(self, weight: Tensor) -> None:
        """Remembers that the weight is what the kernels make."""
        self.mark = weight._version, weight.data_ptr()

    def follow_(self, weight: Tensor, merged: Tensor) -> None:
        """Spreads the difference between a weight that was written and the kernels' sum over the kernels."""
        followed = csla.following(self.block, self.constants, self.kernels, weight, self.name, merged)
        for branch, kernel in self.kernels.items():
            kernel.copy_(followed[branch])
        self.note(weight)

    def saved(self) -> dict[str, Any]:
        return {
            branch: {"kernel": kernel.detach(), "state": self._states.get(kernel, {})}
            for branch, kernel in self.kernels.items()
        }

    def load(self, saved: Mapping[str, Any], on_device: bool) -> None:
        for branch, kernel in self.kernels.items():
            kernel.copy_(saved[branch]["kernel"])
            state = saved[branch]["state"]
            self._states[kernel] = {key: _as_state(key, value, kernel, on_device) for key, value in state.items()}
            if not state:
                del self._states[kernel]
        self.mark = None  # the weight may have been loaded before or after


class BlockSet:
    """Blocks that are spread and merged together: with Triton all at once, otherwise one by one.

    Args:
        blocks: the blocks.
        weights: their operators' weights.
    """

    def __init__(self, blocks: Sequence[BlockKernels], weights: Sequence[Tensor]) -> None:
        self._blocks = blocks
        self._weights = weights
        self._kernels = [kernel for block in blocks for kernel in block.kernels.values()]
        self._stepped: list[Tensor | None] = []
        self._captured: list[Sums] = []  # what a CUDA graph reads
        self._prepare()

    @property
    def is_captured(self) -> bool:
        """Whether a CUDA graph reads its tables."""
        return bool(self._captured) or self._sums.is_captured

    def _prepare(self) -> None:
        at_once = all(map(goes_at_once, (*self._weights, *self._kernels)))
        self._sums = _at_once(self._blocks, self._weights) if at_once else BlocksOneByOne(self._blocks)
        self._addresses = list(map(Tensor.data_ptr, self._kernels))

    def spread(self, *, again: bool = False) -> None:
        """Gives the kernels the gradients of the weights; a weight that had none yet takes no part in a step."""
        grads = [weight.grad for weight in self._weights]
        self._sums.spread(grads)
        before = self._stepped if again else [None] * len(grads)
        self._stepped = [
            old if grad is None else weight for old, grad, weight in zip(before, grads, self._weights, strict=True)
        ]

    def merge_(self, *, everything: bool = False) -> None:
        """Writes what the kernels make into the weights that take part in this step, or into all."""
        if everything:
            self._stepped = list(self._weights)
        if not any(weight is not None for weight in self._stepped):
            return
        if self._addresses != list(map(Tensor.data_ptr, self._kernels)):  # a rule that assigns to `.data`
            self._captured += [self._sums] if self._sums.is_captured else []
            self._prepare()
        self._sums.merge_into_(self._stepped)
        for block, weight in zip(self._blocks, self._stepped, strict=True):
            if weight is not None:
                block.note(weight)

    def release(self) -> None:
        """Takes the gradients from the kernels."""
        self._sums.release()

    def follow_(self, written: Container[str]) -> None:
        """Lets the kernels follow the weights that were written from outside."""
        merged = [
            torch.empty_like(weight) if block.name in written else None
            for block, weight in zip(self._blocks, self._weights, strict=True)
        ]
        if any(made is not None for made in merged):
            self._sums.merge_into_(merged)
        for block, weight, made in zip(self._blocks, self._weights, merged, strict=True):
            if made is not None:
                block.follow_(weight, made)


class BlocksOneByOne:
    """Spreads and sums by torch's own operations, branch after branch."""

    is_captured = False  # a graph reads the blocks' own tensors

    def __init__(self, blocks: Sequence[BlockKernels]) -> None:
        self._blocks = [[_Summand(block, branch) for branch in block.block.in_order()] for block in blocks]

    def spread(self, grads: Sequence[Tensor | None]) -> None:
        """Gives each kernel its gradient; None where the weight has none."""
        for block, grad in zip(self._blocks, grads, strict=True):
            for each in block:
                if grad is None:
                    each.kernel.grad = None
                    continue
                # Of the kernel's own strides: fused CPU optimizers take others without an error, and compute garbage.
                each.kernel.grad = torch.empty_like(each.kernel)
                torch.mul(each.view(grad), each.scale, out=each.kernel.grad.view(each.folded.shape))

    def merge_into_(self, targets: Sequence[Tensor | None]) -> None:
        """Writes what the kernels make into tensors of the weights' shapes; None leaves an operator out."""
        for (first, *others), target in zip(self._blocks, targets, strict=True):
            if target is None:
                continue
            if first.placement.is_whole:
                torch.mul(first.folded, first.scale, out=first.view(target))
            else:
                first.view(target.zero_()).addcmul_(first.folded, first.scale)
            for each in others:
                each.view(target).addcmul_(each.folded, each.scale)

    def release(self) -> None:
        """Takes the gradients from the kernels."""
        for block in self._blocks:
            for each in block:
                each.kernel.grad = None


class _Summand:
    """A branch's kernel and scale in the shape of its entries in the operator's kernel.

    A view takes several of torch's calls, a stride of a known tensor one: looked up by the strides of the whole.
    """

    def __init__(self, block: BlockKernels, branch: str) -> None:
        self.placement = block.block.branches[branch]
        self.kernel = block.kernels[branch]
        self.folded = self.placement.fold(self.kernel.detach())
        scale = block.constants[branch]
        self.scale = scale if scale.ndim == 0 else self.placement.fold(scale)
        self._geometry: dict[tuple[int, ...], tuple[torch.Size, tuple[int, ...], int]] = {}

    def view(self, whole: Tensor) -> Tensor:
        """The branch's entries of an operator-shaped tensor."""
        strides, first = whole.stride(), whole.storage_offset()
        if strides not in self._geometry:
            view = self.placement.view(whole)
            self._geometry[strides] = view.shape, view.stride(), int(view.storage_offset() - first)
        shape, own, offset = self._geometry[strides]
        return whole.as_strided(shape, own, first + offset)


class Sums(Protocol):
    """One by one, or with Triton all at once."""

    @property
    def is_captured(self) -> bool: ...
    def spread(self, grads: Sequence[Tensor | None]) -> None: ...
    def merge_into_(self, targets: Sequence[Tensor | None]) -> None: ...
    def release(self) -> None: ...


def in_sets(blocks: Mapping[str, BlockKernels], weights: Mapping[str, Tensor]) -> list[BlockSet]:
    """The blocks of these weights: on a GPU with Triton one set for each device and dtype, one for the rest."""
    sets: defaultdict[Any, list[str]] = defaultdict(list)
    for name, weight in weights.items():
        sets[(weight.device, weight.dtype) if goes_at_once(weight) else None].append(name)
    return [BlockSet([blocks[name] for name in names], [weights[name] for name in names]) for names in sets.values()]


def goes_at_once(tensor: Tensor) -> bool:
    """Whether the kernels take a weight or a branch's kernel."""
    return takes_kernels(tensor) and takes(tensor, ())


def _at_once(blocks: Sequence[BlockKernels], weights: Sequence[Tensor]) -> Sums:
    from repopt.optim.kernels.blocks_at_once import BlocksAtOnce, PlacedKernel

    placed = [
        [
            PlacedKernel(
                placement=each.block.branches[branch], kernel=each.kernels[branch], scale=each.constants[branch]
            )
            for branch in each.block.in_order()
        ]
        for each in blocks
    ]
    sums: Sums = BlocksAtOnce(weights, placed)
    return sums


def _laid_out_as(weight: Tensor, kernel: Tensor) -> Tensor:
    """With channels last where the weight has them last, as the real block's kernels would be."""
    alike = kernel.ndim == weight.ndim
    return kernel.contiguous(memory_format=csla.memory_format_of(weight) if alike else torch.contiguous_format)


def _as_state(key: str, value: Any, kernel: Tensor, on_device: bool) -> Any:
    """As torch loads a state: of the parameter's device and precision, but for a step count kept on the host."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.to(kernel.device, torch.float32) if on_device else value
    value = value.to(kernel.device, kernel.dtype if value.is_floating_point() and value.ndim else value.dtype)
    if value.shape != kernel.shape or value.stride() == kernel.stride():
        return value
    return torch.empty_like(kernel, dtype=value.dtype).copy_(value)  # saved when kernels were always contiguous
