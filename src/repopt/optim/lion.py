"""Lion in closed form: it follows the sign of a mean of gradients, and the sizes of the block's scales add up.

dW'  =  -lr * ( sum_b embed_b(|s_b|) ) * sign(beta1 m + (1 - beta1) g)  -  lr * wd * W'
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from repopt.algebra.multiplier import Multiplier
from repopt.optim.closed_form import ClosedForm, Options, Slot
from repopt.optim.one_pass import Update
from repopt.optim.product import product
from repopt.optim.rep_optimizer import RepOptimizer
from repopt.plans.planning import Plan


class ClosedLion(ClosedForm):
    """Lion's step on the imagined blocks."""

    rule = "lion"
    route = "closed-Lion"
    degree = 0

    def keys(self, options: Options) -> tuple[str, ...]:
        return ("exp_avg",)

    def numbers(self, options: Options) -> tuple[float | Tensor, ...]:
        sign = -1.0 if options["maximize"] else 1.0
        beta1, beta2 = options["betas"]
        return options["lr"], options["weight_decay"], sign, 1 - beta1, 1 - beta2

    def update(self) -> Update:
        return _update_

    def step_(self, slot: Slot) -> None:
        lr, (beta1, beta2) = slot.options["lr"], slot.options["betas"]
        grad = -slot.grad if slot.options["maximize"] else slot.grad
        (mean,) = slot.states
        update = mean.lerp(grad, 1 - beta1).sign_()
        if isinstance(slot.factors, Multiplier):
            update = product(update, slot.factors)
        if slot.options["weight_decay"]:
            slot.param.mul_(1 - lr * slot.options["weight_decay"])
        slot.param.sub_(update.mul_(lr))
        mean.lerp_(grad, 1 - beta2)


def _update_(
    weight: Tensor, grad: Tensor, states: Sequence[Tensor], factors: Sequence[Tensor], numbers: Sequence[Tensor]
) -> None:
    """The step of one pass, as the kernel takes it."""
    lr, decay, sign, now, later = numbers
    (mean,) = states
    ahead = sign * grad - mean
    update = torch.sign(mean + now * ahead) * sum(factors)
    weight.copy_((1 - lr * decay) * weight - lr * update)
    mean.add_(later * ahead)


class Lion(RepOptimizer):
    """Lion on the imagined blocks.

    Args:
        params: parameters or param groups.
        plan: a plan with scales.
        lr: learning rate, a number or a tensor.
        betas: weight of the moment in the step, and its decay.
        weight_decay: decoupled, applied to W' once.
        maximize: maximize the loss instead of minimizing it.
        foreach: has no effect; accepted because torch's optimizers have it.
        capturable: has no effect: a CUDA graph can always hold the step.
        max_norm: clip the gradients to this norm of the imagined blocks, inside the step.

    Example:
        >>> plan.init_()
        >>> optimizer = repopt.optim.Lion(net.parameters(), plan, lr=1e-4, weight_decay=1.0)
    """

    def __init__(
        self,
        params: ParamsT,
        plan: Plan,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        max_norm: float | None = None,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
        }
        super().__init__(params, plan, options, ClosedLion, max_norm)
