"""The grad route: multiply the gradient by the Grad Mult, then let the optimizer step.

    W'(i+1)  =  W'(i)  -  lr * M * dL/dW'(i)                                                          (Eq. 2, Eq. 3)

The product is taken inside `step`, after gradients were accumulated and reduced over ranks, in place, and at most once
for a gradient.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.multiplier import multiply_
from repopt.algebra.sharding import local_rows
from repopt.device import is_capturing
from repopt.optim.closures import Arguments, with_closure
from repopt.optim.held import held_weights
from repopt.plans.planning import Plan


class GradRoute:
    """The hooks that multiply the gradients of a plan's operators around an optimizer's step."""

    name = "grad"

    def __init__(self, optimizer: Optimizer, plan: Plan) -> None:
        self.plan = plan
        self._sites = plan.sites()
        self._done: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._samples: dict[str, Tensor] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    @property
    def nbytes(self) -> int:
        """What the multipliers take."""
        return sum(self.plan.multiplier_of(name, site.weight).nbytes for name, site in self._sites.items())

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
        weights = held_weights(optimizer, self._sites)
        grads = {name: local_rows(weight.grad)[0] for name, weight in weights.items() if weight.grad is not None}
        self._check_new(grads)
        multiply_(list(grads.values()), [self.plan.multiplier_of(name, weights[name]) for name in grads])
        self._mark(grads)

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


def _few(grad: Tensor) -> Tensor:
    """A copy of some entries, of channels all over the gradient: those of a dead one are zero."""
    return grad[:: max(1, len(grad) // 16), :4].clone()
