"""AdamW and Adam in closed form: one pair of moments, eps for each branch.

    dW'  =  -lr * sum_b embed_b( s_b^2 * m / (|s_b| * sqrt(v) + eps) )  -  lr * wd * W'

The block's moments are s_b * m and s_b^2 * v, so those of W' alone suffice. eps is not scaled: it belongs to each
branch, and pulling it out of the sum would be another optimizer.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from repopt.algebra.branches import Entries
from repopt.optim.closed_form import ClosedForm, Options, Slot
from repopt.optim.kernels.launches import Row
from repopt.optim.one_pass import Update
from repopt.optim.rep_optimizer import RepOptimizer
from repopt.plans.planning import Plan

_STEP = 2  # the place of the step count among the states


class ClosedAdamW(ClosedForm):
    """AdamW's step on the imagined blocks; its state is that of `torch.optim.AdamW`."""

    rule = "adam"
    route = "closed-AdamW"

    def keys(self, options: Options) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "step", *(["max_exp_avg_sq"] if options["amsgrad"] else []))

    def new_state(self, key: str, param: Tensor, options: Options) -> Tensor:
        if key != "step":
            return super().new_state(key, param, options)
        return torch.zeros((), dtype=torch.float32, device=param.device if options["capturable"] else "cpu")

    def flags(self, options: Options) -> dict[str, bool]:
        return {"amsgrad": options["amsgrad"]}

    def numbers(self, options: Options) -> tuple[float | Tensor, ...]:
        sign = -1.0 if options["maximize"] else 1.0
        beta1, beta2 = options["betas"]
        logs = [math.log(beta) if beta else -math.inf for beta in (beta1, beta2)]
        return options["lr"], options["weight_decay"], sign, 1 - beta1, 1 - beta2, *logs, options["eps"]

    def count_(self, rows: Sequence[Row], found_inf: Tensor | None) -> None:
        steps = [row.states[_STEP] for row in rows]
        torch._foreach_add_(steps, 1 if found_inf is None else (1 - found_inf).to(steps[0].device))

    def update(self) -> Update:
        return _update_

    def pass_numbers(self, options: Options, states: Sequence[Tensor]) -> tuple[float, ...]:
        lr, decay, sign, now, later, log_beta1, log_beta2, eps = map(float, self.numbers(options))
        step = states[_STEP].item()
        rate, norm = lr / -math.expm1(step * log_beta1), (-math.expm1(step * log_beta2)) ** -0.5
        return 1 - lr * decay, sign, now, later, rate, norm, eps

    def step_(self, slot: Slot) -> None:
        """W' <- (1 - lr wd) W' - lr sum_b embed_b( s_b^2 m / (|s_b| root + eps) ), after the moments."""
        options, lr = slot.options, slot.options["lr"]
        beta1, beta2 = options["betas"]
        first, second, count = slot.states[:3]
        grad = -slot.grad if options["maximize"] else slot.grad
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if options["amsgrad"]:
            second = torch.maximum(slot.states[3], second, out=slot.states[3])
        step = _count(count, grad.dtype) if options["capturable"] else count.item()
        rate, norm = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
        root = second.sqrt()
        if options["weight_decay"]:
            slot.param.mul_(1 - lr * options["weight_decay"])
        if slot.factors is None:
            slot.param.addcdiv_(first * rate, root.mul_(norm).add_(options["eps"]), value=-1)
            return
        assert isinstance(slot.factors, list)
        for entries in slot.factors:
            numerator, denominator = fraction(entries, first, root, rate, norm, options["eps"])
            if entries.placement.covers:
                slot.param.addcdiv_(numerator, denominator, value=-1)
            else:
                entries.add_(slot.param, numerator.div_(denominator).neg_())


def _update_(
    weight: Tensor,
    grad: Tensor,
    states: Sequence[Tensor],
    factors: Sequence[Tensor],
    numbers: Sequence[Tensor],
    *,
    amsgrad: bool,
) -> None:
    """The step of one pass, as the kernel takes it."""
    kept, sign, now, later, rate, norm, eps = numbers
    grad = sign * grad
    first = states[0] + now * (grad - states[0])
    second = states[1] + later * (grad * grad - states[1])
    states[0].copy_(first)
    states[1].copy_(second)
    if amsgrad:
        second = torch.maximum(second, states[2])
        states[2].copy_(second)
    root = norm * second.sqrt()
    update = sum(torch.where(size > 0, size * size * first / (eps + size * root), 0) for size in factors)
    weight.copy_(kept * weight - rate * update)


def fraction(
    entries: Entries, first: Tensor, root: Tensor, rate: float | Tensor, norm: float | Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """A branch's update, rate * s^2 m over |s| root norm + eps; rate and norm are folded into the small factors."""
    size = entries.values
    return entries.read(first) * (size.square() * rate), (entries.read(root) * (size * norm)).add_(eps)


def _count(step: Tensor, dtype: torch.dtype) -> Tensor:
    """The step count in the precision of the moments: a power of beta in float32 is good to six digits only."""
    return step.to(torch.promote_types(dtype, torch.float32))


class ClosedAdam(ClosedAdamW):
    """Adam's: without a decay."""

    route = "closed-Adam"

    def check(self, options: Options) -> None:
        if options["weight_decay"]:
            raise ValueError(
                "Adam's coupled weight decay has no closed form: use repopt.optim.AdamW for the decoupled one, or "
                "repopt.attach(torch.optim.Adam(..., weight_decay=...), plan), which takes the branch route"
            )


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
        maximize: maximize the loss instead of minimizing it.
        foreach: has no effect; accepted because torch's AdamW has it.
        capturable: keep the step count on the device, so that a CUDA graph can hold the step; with Triton it always is.
        max_norm: clip the gradients to this norm of the imagined blocks, inside the step.

    Example:
        >>> plan.init_()
        >>> optimizer = repopt.optim.AdamW(net.parameters(), plan, lr=1e-3, weight_decay=0.05)
    """

    _closed_form: type[ClosedForm] = ClosedAdamW

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
        max_norm: float | None = None,
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
        super().__init__(params, plan, options, self._closed_form, max_norm)


class Adam(AdamW):
    """Adam on the imagined blocks; equals `torch.optim.Adam` on the real ones.

    There is no weight decay: Adam's goes into the moments, which then depend on the blocks' kernels, not on W' alone.
    Attach `torch.optim.Adam(weight_decay=...)` instead, which takes the branch route.
    """

    _closed_form = ClosedAdam

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
