"""The grad route: multiply the gradient by the Grad Mult, then let the optimizer step.

    W'(i+1)  =  W'(i)  -  lr * M * dL/dW'(i)                                                          (Eq. 2, Eq. 3)

The product is taken inside `step`, after gradients were accumulated and reduced over ranks, in place, and at most once
for a gradient.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.attachment.closures import Arguments, with_closure
from repopt.held import held_weights
from repopt.multiplier import multiply_
from repopt.plans import Plan
from repopt.sharding import local_rows


class GradRoute:
    """The hooks that multiply the gradients of a plan's operators around an optimizer's step."""

    name = "grad"

    def __init__(self, optimizer: Optimizer, plan: Plan) -> None:
        self.plan = plan
        self._sites = plan.sites()
        self._done: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            *(
                site.weight.register_post_accumulate_grad_hook(partial(self._refuse_more, name))  # type: ignore[no-untyped-call]
                for name, site in self._sites.items()
                if site.weight.requires_grad
            ),
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
        self._mark(self._grads(optimizer))

    @torch.no_grad()
    def _multiply_(self, optimizer: Optimizer) -> None:
        grads = self._grads(optimizer)
        for name, grad in grads.items():
            known, version = self._done.get(name, (None, 0))
            if known is not None and known() is grad and version == grad._version:
                raise RuntimeError(
                    f"the gradient of {name!r} was multiplied for an earlier step and has not changed since: call "
                    "zero_grad() and backward() before the next step()"
                )
        multipliers = [self.plan.multiplier_of(name, self._sites[name].weight) for name in grads]
        multiply_(list(grads.values()), multipliers)
        self._mark(grads)

    def _grads(self, optimizer: Optimizer) -> dict[str, Tensor]:
        weights = held_weights(optimizer, self._sites)
        return {name: local_rows(weight.grad)[0] for name, weight in weights.items() if weight.grad is not None}

    def _refuse_more(self, name: str, weight: Tensor) -> None:
        """After a backward pass: refuses a sum of a gradient that was multiplied and one that was not."""
        known, version = self._done.get(name, (None, 0))
        grad = weight.grad
        if grad is not None and known is not None and known() is grad and grad._version == version + 1:
            raise RuntimeError(
                f"backward() added to the gradient of {name!r} that the last step() multiplied: call zero_grad() after "
                "each step()"
            )

    def _mark(self, grads: dict[str, Tensor]) -> None:
        self._done = {name: (weakref.ref(grad), grad._version) for name, grad in grads.items()}
