"""What the closed forms share: a plan, its branches on the parameters held here, and the state's fingerprint."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from repopt.algebra.branches import Entries, entries_of
from repopt.algebra.sharding import local_rows
from repopt.optim.contract import (
    PlannedWeights,
    check_held,
    check_reached,
    fingerprint,
    refuse_other_state,
    stamp_,
)
from repopt.plans.planning import Plan, check_plan


class RepOptimizer(Optimizer):
    """An optimizer that re-parameterizes in its own step.

    Args:
        params: parameters or param groups; they must hold every planned weight that is trained.
        plan: a plan with scales.
        defaults: the rule's options.
    """

    # GradScaler leaves unscaling to the step, which then needs no look at the gradients from the host.
    _step_supports_amp_scaling = True

    def __init__(self, params: ParamsT, plan: Plan, defaults: dict[str, Any]) -> None:
        check_plan(plan)
        _check_options(**defaults)
        super().__init__(params, defaults)
        self.plan = plan
        self._planned = PlannedWeights(plan)
        self._branches: dict[str, list[Entries]] = {}
        check_held(self, self.plan)
        check_reached(self.plan)
        stamp_(self, fingerprint(self.plan, f"closed-{type(self).__name__}"))
        self.register_load_state_dict_pre_hook(refuse_other_state)
        self.__dict__["__reduce_ex__"] = refuse_copy

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step.

        Args:
            closure: evaluates the model anew and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gate = self._gate()
        if gate is not None:
            names = {id(weight): name for name, weight in self._planned.held_by(self).items()}
            for group in self.param_groups:
                self._step_group(group, names, gate)
        return loss

    def _step_group(self, group: dict[str, Any], names: dict[int, str], gate: float | Tensor) -> None:
        raise NotImplementedError

    def _gate(self) -> float | Tensor | None:
        """1, or 0 where GradScaler found an overflow; None for a step to be left out altogether."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            return 1.0
        if any(group.get("capturable") for group in self.param_groups):
            return torch.eq(found_inf, 0).to(found_inf.dtype)
        return None if found_inf.item() else 1.0

    def _grads(self, group: dict[str, Any], gate: float | Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter of a group that has a gradient, with what the rule is to see of it."""
        scale = getattr(self, "grad_scale", None)
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.is_sparse or param.is_complex():
                raise TypeError(f"{type(self).__name__} takes real parameters with dense gradients only")
            grad = local_rows(param.grad)[0]
            if scale is not None:
                grad = grad / scale.to(grad.device)
            if isinstance(gate, Tensor):
                grad = torch.where(gate.to(grad.device) > 0, grad, 0)
            yield param, -grad if group["maximize"] else grad

    def _branches_of(self, name: str | None, param: Tensor) -> list[Entries] | None:
        """The branches of a planned weight with the sizes |s_b| of their scales; None for any other parameter."""
        if name is None:
            return None
        local, rows = local_rows(param)
        known = self._branches.get(name)
        if known is None or known[0].values.device != local.device or known[0].values.dtype != local.dtype:
            sizes = {branch: constant.abs() for branch, constant in self.plan.constants(name).items()}
            known = self._branches[name] = entries_of(self.plan.blocks[name].branches, sizes, local, rows)
        return known

    @property
    def nbytes(self) -> int:
        """What the scales take: all that is kept beside what the stock optimizer keeps."""
        return sum(entries.nbytes for branches in self._branches.values() for entries in branches)


def gated(value: float | Tensor, gate: float | Tensor, like: Tensor) -> float | Tensor:
    """A value, or 0 where the gate is shut, in the precision of what it is used on."""
    return value * gate.to(like) if isinstance(gate, Tensor) else value


def wants_foreach(group: dict[str, Any], grad: Tensor) -> bool:
    """As the group says; where it says nothing, on CUDA."""
    return grad.device.type == "cuda" if group["foreach"] is None else bool(group["foreach"])


def refuse_copy(protocol: int) -> Any:
    raise TypeError(
        "an optimizer that repopt works in cannot be copied or pickled, since what ties it to its plan would be lost: "
        "save its state_dict(), or detach() its handle first where it was attached"
    )


def _check_options(
    *, lr: float | Tensor, betas: tuple[float, float], weight_decay: float, eps: float = 0.0, **_: Any
) -> None:
    for name, value in {"lr": float(lr), "weight_decay": weight_decay, "eps": eps}.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, not {value}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be at least 0 and below 1, not {betas}")
