"""AdamW and Adam in closed form: one pair of moments, eps for each branch.

    dW'  =  -lr * sum_b embed_b( s_b^2 * m / (|s_b| * sqrt(v) + eps) )  -  lr * wd * W'

The block's moments are s_b * m and s_b^2 * v, so those of W' alone suffice. eps is not scaled: it belongs to each
branch, and pulling it out of the sum would be another optimizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from repopt.algebra.branches import Entries
from repopt.algebra.sharding import local_rows
from repopt.device import takes_kernels
from repopt.optim.closed_form import RepOptimizer, gated, wants_foreach
from repopt.plans.planning import Plan


class AdamW(RepOptimizer):
    """AdamW on the imagined blocks; equals `torch.optim.AdamW` on the real ones.

    Args:
        params: parameters or param groups.
        plan: a plan with scales.
        lr: learning rate, a number or a tensor.
        betas: decay of the two moments.
        eps: added to the root of the second moment, in each branch.
        weight_decay: decoupled, applied to W' once.
        amsgrad: use the largest second moment so far.
        maximize: go uphill.
        foreach: update the moments of all parameters at once; on CUDA unless said otherwise.
        capturable: keep the step count on the device, so that a CUDA graph can hold the step.

    Example:
        >>> plan.init_()
        >>> optimizer = repopt.optim.AdamW(net.parameters(), plan, lr=1e-3, weight_decay=0.05)
    """

    def __init__(
        self,
        params: ParamsT,
        plan: Plan,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
        }
        self._rows: dict[str, tuple[list[Entries], Any]] = {}
        super().__init__(params, plan, options)

    def _step_group(self, group: dict[str, Any], names: dict[int, str], gate: float | Tensor) -> None:
        slots = []
        for param, grad in self._grads(group, gate):
            name, state = names.get(id(param)), self._state(param, group)
            if self._step_at_once(param, grad, state, group, name, gate):
                continue
            state["step"] += gate
            slots.append(self._slot(name, param, grad, state, group))
        if not slots:
            return
        betas, at_once = group["betas"], wants_foreach(group, slots[0].grad) and not isinstance(gate, Tensor)
        if at_once:
            update_moments_(slots, betas)
        for slot in slots:
            if not at_once:
                update_moment_(slot, betas, gate)
            step_(slot, gated(group["lr"], gate, slot.param), betas, group["eps"], group["weight_decay"])

    def _slot(
        self, name: str | None, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> "Slot":
        return Slot(
            param=local_rows(param)[0],
            grad=grad,
            first=local_rows(state["exp_avg"])[0],
            second=local_rows(state["exp_avg_sq"])[0],
            largest=local_rows(state["max_exp_avg_sq"])[0] if group["amsgrad"] else None,
            branches=self._branches_of(name, param),
            step=_count(state["step"], grad.dtype) if group["capturable"] else state["step"].item(),
        )

    def _step_at_once(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        name: str | None,
        gate: float | Tensor,
    ) -> bool:
        """On a GPU with Triton, the whole step of a planned weight in one pass; False where this was not done."""
        numbers = not isinstance(gate, Tensor) and not isinstance(group["lr"], Tensor)
        if name is None or not numbers or group["amsgrad"] or grad.dtype == torch.float64 or not takes_kernels(grad):
            return False
        from repopt.optim.kernels import adamw

        local, rows = local_rows(param)
        first, second = (local_rows(state[key])[0] for key in ("exp_avg", "exp_avg_sq"))
        branches = self._branches_of(name, param)
        assert branches is not None
        if self._rows.get(name, (None,))[0] is not branches:
            self._rows[name] = branches, adamw.RowsOfScales(branches, local, 0 if rows is None else rows.start)
        scales = self._rows[name][1]
        if not scales.takes or not local.numel() or not adamw.is_dense_in_rows([local, grad, first, second]):
            return False
        state["step"] += 1
        adamw.adamw_rows_(
            local,
            grad,
            first,
            second,
            state["step"] if group["capturable"] else state["step"].item(),
            scales,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            betas=group["betas"],
            eps=group["eps"],
        )
        return True

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(int(scales.nbytes) for _, scales in self._rows.values())

    def _state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            device = param.device if group["capturable"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for key in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])):
                state[key] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state


class Adam(AdamW):
    """Adam on the imagined blocks; equals `torch.optim.Adam` on the real ones.

    There is no weight decay: Adam's goes into the moments, which then depend on the blocks' kernels, not on W' alone.
    Attach `torch.optim.Adam(weight_decay=...)` instead, which takes the branch route.
    """

    def __init__(
        self,
        params: ParamsT,
        plan: Plan,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, plan, lr, betas, eps, weight_decay, amsgrad, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        _refuse_decay(param_group)

    def _step_group(self, group: dict[str, Any], names: dict[int, str], gate: float | Tensor) -> None:
        _refuse_decay(group)
        super()._step_group(group, names, gate)


def _refuse_decay(group: dict[str, Any]) -> None:
    if group["weight_decay"]:
        raise ValueError(
            "Adam's coupled weight decay has no closed form: use repopt.optim.AdamW for the decoupled one, or "
            "repopt.attach(torch.optim.Adam(..., weight_decay=...), plan), which takes the branch route"
        )


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What the step of one parameter works on."""

    param: Tensor
    grad: Tensor
    first: Tensor
    second: Tensor
    largest: Tensor | None
    branches: list[Entries] | None
    step: float | Tensor


def update_moments_(slots: Sequence[Slot], betas: tuple[float, float]) -> None:
    """Sets m to beta1 m + (1 - beta1) g and v to beta2 v + (1 - beta2) g^2, of all slots at once."""
    beta1, beta2 = betas
    grads, seconds = [slot.grad for slot in slots], [slot.second for slot in slots]
    torch._foreach_lerp_([slot.first for slot in slots], grads, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)


def update_moment_(slot: Slot, betas: tuple[float, float], gate: float | Tensor) -> None:
    """The same for one slot; with a gate of 0 the moments stay."""
    beta1, beta2 = betas
    slot.first.lerp_(slot.grad, gated(1 - beta1, gate, slot.first))
    if isinstance(gate, Tensor):
        slot.second.lerp_(slot.grad.square(), gated(1 - beta2, gate, slot.second))
    else:
        slot.second.mul_(beta2).addcmul_(slot.grad, slot.grad, value=1 - beta2)


def step_(slot: Slot, lr: float | Tensor, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """W' <- (1 - lr wd) W' - lr sum_b embed_b( s_b^2 m / (|s_b| root + eps) ), from the moments."""
    second = slot.second
    if slot.largest is not None:
        second = torch.maximum(slot.largest, second, out=slot.largest)
    root = second.sqrt()
    # no step was taken yet where GradScaler skips the first: the moments are zero, and must not be divided by zero
    step = slot.step.clamp(min=1) if isinstance(slot.step, Tensor) else slot.step
    rate, norm = lr / (1 - betas[0] ** step), (1 - betas[1] ** step) ** -0.5
    if weight_decay:
        slot.param.mul_(1 - lr * weight_decay)
    if slot.branches is None:
        slot.param.addcdiv_(slot.first * rate, root.mul_(norm).add_(eps), value=-1)
        return
    for entries in slot.branches:
        numerator, denominator = fraction(entries, slot.first, root, rate, norm, eps)
        if entries.placement.covers:
            slot.param.addcdiv_(numerator, denominator, value=-1)
        else:
            entries.add_(slot.param, numerator.div_(denominator).neg_())


def fraction(
    entries: Entries, first: Tensor, root: Tensor, rate: float | Tensor, norm: float | Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """A branch's update, rate * s^2 m over |s| root norm + eps; rate and norm are folded into the small factors."""
    size = entries.values
    return entries.read(first) * (size.square() * rate), (entries.read(root) * (size * norm)).add_(eps)


def _count(step: Tensor, dtype: torch.dtype) -> Tensor:
    """The step count in the precision of the moments: a power of beta in float32 is good to six digits only."""
    return step.to(torch.promote_types(dtype, torch.float32))
