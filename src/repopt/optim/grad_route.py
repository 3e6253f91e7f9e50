"""The grad route: multiply the gradient by the Grad Mult, then let the optimizer step.

    W'(i+1)  =  W'(i)  -  lr * M * dL/dW'(i)                                                          (Eq. 2, Eq. 3)

The product is taken inside `step`, after gradients were accumulated and reduced over ranks, in place, and at most once
for a gradient.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.multiplier import Multiplier
from repopt.algebra.sharding import local_rows
from repopt.device import is_capturing, takes_kernels
from repopt.optim.contract import PlannedWeights
from repopt.plans.planning import Plan

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any]

# Multiplying a contiguous kernel by (O, 1, 3, 3) runs inner loops of 9 on a CPU. A tile of this many input channels
# makes them long enough to vectorize.
_TILE_CHANNELS = 16


class GradRoute:
    """The hooks that multiply the gradients of a plan's operators around an optimizer's step."""

    name = "grad"

    def __init__(self, optimizer: Optimizer, plan: Plan) -> None:
        self.plan = plan
        self._planned = PlannedWeights(plan)
        self._multipliers: dict[str, tuple[weakref.ref[Tensor], tuple[torch.device, torch.dtype], Multiplier]] = {}
        self._done: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._samples: dict[str, Tensor] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def nbytes(self) -> int:
        """What the multipliers take."""
        return sum(self._multiplier(name, weight).nbytes for name, weight in self._planned.now().items())

    def detach(self, optimizer: Optimizer) -> None:
        for hook in self._hooks:
            hook.remove()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        def multiplying(closure: Callable[[], Any]) -> Callable[[], Any]:
            def evaluate() -> Any:
                loss = closure()
                self._multiply_(optimizer)
                return loss

            return evaluate

        wrapped = with_closure(args, kwargs, multiplying)
        if wrapped is None:
            self._multiply_(optimizer)
        return wrapped

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Some implementations use the gradient as scratch space: only what happens to it from here on makes it new.
        self._mark({name: grad for name, (known, _) in self._done.items() if (grad := known()) is not None})

    @torch.no_grad()
    def _multiply_(self, optimizer: Optimizer) -> None:
        weights = self._planned.held_by(optimizer)
        grads = {name: local_rows(weight.grad)[0] for name, weight in weights.items() if weight.grad is not None}
        self._check_new(grads)
        multiply_(list(grads.values()), [self._multiplier(name, weights[name]) for name in grads])
        self._mark(grads)

    def _multiplier(self, name: str, weight: Tensor) -> Multiplier:
        """The operator's Grad Mult; made anew where its weight is another one, or was moved, since the last step."""
        found = self._multipliers.get(name)
        if found is None or found[0]() is not weight or found[1] != (weight.device, weight.dtype):
            place = weight.device, weight.dtype
            found = self._multipliers[name] = weakref.ref(weight), place, self.plan.multiplier_of(name, weight)
        return found[2]

    def _check_new(self, grads: dict[str, Tensor]) -> None:
        """Refuses gradients that an earlier step multiplied.

        A gradient that is the same tensor and was not written to since, as far as torch's version tells, is suspect.
        The replay of a CUDA graph writes without a new version, and so do foreach kernels: a few values decide.
        """
        for name, values in self._samples.items():
            known, version = self._done.get(name, (None, 0))
            grad = grads.get(name)
            if grad is None or known is None or known() is not grad or version != grad._version or is_capturing(grad):
                continue
            if values.any() and torch.equal(values, _few(grad)):
                raise RuntimeError(
                    f"the gradient of {name!r} was multiplied for an earlier step and has not changed since: call "
                    "zero_grad() and backward() before the next step()"
                )

    def _mark(self, grads: dict[str, Tensor]) -> None:
        self._done = {name: (weakref.ref(grad), grad._version) for name, grad in grads.items()}
        held = [name for name, grad in grads.items() if grad.numel()]
        ends = dict.fromkeys((*held[:1], *held[-1:]))  # a gradient that is zero tells nothing: two are asked
        if ends and not is_capturing(grads[held[0]]):
            self._samples = {name: _few(grads[name]) for name in ends}


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Closure], Closure]) -> Arguments | None:
    """The arguments with their closure wrapped, or None if there is no closure; args[0] is the optimizer."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    if len(args) > 1:
        return (args[0], wrap(closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": wrap(closure)}


def _few(grad: Tensor) -> Tensor:
    """A copy of some entries, of channels all over the gradient: those of a dead one are zero."""
    return grad[:: max(1, len(grad) // 16), :4].clone()


def multiply_(grads: Sequence[Tensor], multipliers: Sequence[Multiplier]) -> None:
    """Multiplies each gradient by its M, in place, without a tensor of its size."""
    pairs = [(grad, each) for grad, each in zip(grads, multipliers, strict=True) if not _multiply_at_once_(grad, each)]
    on_top = [(grad, entries) for grad, each in pairs for entries in each.diagonals]
    reads = [entries.read(grad) for grad, entries in on_top]
    extras = torch._foreach_mul(reads, [entries.values for _, entries in on_top]) if reads else ()
    _multiply_by_taps_([(grad, each.taps) for grad, each in pairs])
    views = [(read, extra) for read, extra, (_, on) in zip(reads, extras, on_top, strict=True) if on.index is None]
    if views:
        torch._foreach_add_([read for read, _ in views], [extra for _, extra in views])
    for extra, (grad, entries) in zip(extras, on_top, strict=True):
        if entries.index is not None:
            entries.add_(grad, extra)


def _multiply_at_once_(grad: Tensor, multiplier: Multiplier) -> bool:
    """On a GPU with Triton, the whole product in one pass; False where this was not done."""
    on_top = multiplier.diagonals
    if len(on_top) > 1 or any(not entries.placement.is_identity for entries in on_top) or not takes_kernels(grad):
        return False
    from repopt.optim.kernels.multiply import multiply_rows_

    return multiply_rows_(grad, multiplier.taps, on_top[0].values if on_top else None, multiplier.first)


def _multiply_by_taps_(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Multiplies gradients by (rows or 1, 1, *taps), through tiles where these are faster."""
    tiles = [_tile(grad) for grad, _ in pairs]
    largest = max((tile * taps.numel() for tile, (_, taps) in zip(tiles, pairs, strict=True) if tile > 1), default=0)
    scratch: dict[torch.dtype, Tensor] = {}  # for all tiles: fresh memory for each would cost more than filling it
    for tile, (grad, taps) in zip(tiles, pairs, strict=True):
        if tile == 1:
            grad.mul_(taps)
            continue
        if taps.dtype not in scratch:
            scratch[taps.dtype] = taps.new_empty(largest)
        rows, length = taps.shape[0], tile * taps[0].numel()
        tiled = scratch[taps.dtype][: rows * length]
        tiled.view(rows, tile, -1).copy_(taps.view(rows, 1, -1))
        grad.view(grad.shape[0], -1, length).mul_(tiled.view(rows, 1, length))


def _tile(grad: Tensor) -> int:
    """How many input channels to multiply at once; 1 where that is no faster."""
    if not grad.is_cpu or not grad.numel() or not grad.is_contiguous():
        return 1
    _, channels, *taps = grad.shape
    if math.prod(taps) == 1:
        return 1
    return channels if channels <= _TILE_CHANNELS else math.gcd(channels, _TILE_CHANNELS)
