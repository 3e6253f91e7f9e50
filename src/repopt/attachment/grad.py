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

from repopt.multiplier import Multiplier, multiply_
from repopt.plans import Plan


class GradRoute:
    """The hooks that multiply the gradients of a plan's operators around an optimizer's step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._modules = plan.modules()
        self._multipliers = {name: plan.multiplier(name) for name in plan.operators}
        self._done: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    @property
    def nbytes(self) -> int:
        """What the multipliers take."""
        return sum(multiplier.nbytes for multiplier in self._multipliers.values())

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self.multiply_(optimizer)
            return None
        wrapped = self._multiplying(closure, optimizer)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Some implementations use the gradient as scratch space: only what happens to it from here on makes it new.
        self._mark(self._grads(optimizer))

    @torch.no_grad()
    def multiply_(self, optimizer: Optimizer) -> None:
        grads = self._grads(optimizer)
        for name, grad in grads.items():
            known, version = self._done.get(name, (None, 0))
            if known is not None and known() is grad and version == grad._version:
                raise RuntimeError(
                    f"the gradient of {name!r} was multiplied for an earlier step and has not changed since: call "
                    "zero_grad() and backward() before the next step()"
                )
        multiply_(list(grads.values()), [self._multiplier(name, grad) for name, grad in grads.items()])
        self._mark(grads)

    def _multiplying(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.multiply_(optimizer)
            return loss

        return evaluate

    def _grads(self, optimizer: Optimizer) -> dict[str, Tensor]:
        held = {id(param) for group in optimizer.param_groups for param in group["params"]}
        grads = {}
        for name, module in self._modules.items():
            weight = module.weight
            if weight.grad is None:
                continue
            if id(weight) in held:
                grads[name] = weight.grad
            elif weight.requires_grad:
                raise RuntimeError(
                    f"the weight of {name!r} is trained but is not, or no longer, a parameter of the attached "
                    "optimizer: add it to a param group, or detach and attach to a new optimizer"
                )
        return grads

    def _multiplier(self, name: str, grad: Tensor) -> Multiplier:
        if self._multipliers[name].taps.device != grad.device:  # the model was moved since
            self._multipliers[name] = self.plan.multiplier(name)
        return self._multipliers[name]

    def _mark(self, grads: dict[str, Tensor]) -> None:
        self._done = {name: (weakref.ref(grad), grad._version) for name, grad in grads.items()}
