"""Optimizers of our own: a closed form with a plan, param groups and a state."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from repopt.optim.closed_form import ClosedForm
from repopt.optim.contract import check_held, check_reached
from repopt.optim.fingerprints import fingerprint, guard_loading, stamp_
from repopt.plans.planning import Plan, check_plan


def refuse_copy(protocol: SupportsIndex) -> Any:
    raise TypeError(
        "an optimizer that repopt works in cannot be copied or pickled, since what ties it to its plan would be lost: "
        "save its state_dict(), or detach() its handle first where it was attached"
    )


class RepOptimizer(Optimizer):
    """An optimizer that re-parameterizes in its own step.

    Args:
        params: parameters or param groups; they must hold every planned weight that is trained.
        plan: a plan with scales.
        defaults: the rule's options.
        form: the rule's closed form.
        max_norm: clip the gradients to this norm of the imagined blocks, inside the step.
    """

    # GradScaler leaves unscaling to the step, which then needs no look at the gradients from the host.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: ParamsT,
        plan: Plan,
        defaults: dict[str, Any],
        form: type[ClosedForm],
        max_norm: float | None = None,
    ) -> None:
        check_plan(plan)
        super().__init__(params, defaults)
        self.plan = plan
        self._form = form(plan, max_norm)
        for group in self.param_groups:
            _check_options(group)
            self._form.check(group)
        check_held(self, plan)
        check_reached(plan)
        stamp_(self, fingerprint(plan, self._form.route))
        guard_loading(self)
        self.__dict__["__reduce_ex__"] = refuse_copy

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step.

        Args:
            closure: evaluates the model anew and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._form(self)
        return loss

    @property
    def nbytes(self) -> int:
        """What is kept beside what the stock optimizer keeps."""
        return self._form.nbytes


def _check_options(options: dict[str, Any]) -> None:
    for name in ("lr", "weight_decay", "eps", "momentum"):
        value = options.get(name, 0.0)
        is_number = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real)
        if not is_number or not 0 <= float(value) < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")
    betas = options.get("betas", (0.0, 0.0))
    pair = isinstance(betas, Sequence) and len(betas) == 2 and all(isinstance(beta, Real | Tensor) for beta in betas)
    if not pair or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers of at least 0 and below 1, not {betas!r}")
