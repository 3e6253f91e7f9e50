"""Lion in closed form: it follows the sign of a mean of gradients, and the sizes of the block's scales add up.

dW'  =  -lr * ( sum_b embed_b(|s_b|) ) * sign(beta1 m + (1 - beta1) g)  -  lr * wd * W'
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from repopt.algebra.branches import Entries, sum_over
from repopt.algebra.sharding import local_rows
from repopt.optim.closed_form import RepOptimizer, gated, wants_foreach
from repopt.plans.planning import Plan


class Lion(RepOptimizer):
    """Lion on the imagined blocks.

    Args:
        params: parameters or param groups.
        plan: a plan with scales.
        lr: learning rate, a number or a tensor.
        betas: weight of the moment in the step, and its decay.
        weight_decay: decoupled, applied to W' once.
        maximize: go uphill.
        foreach: update the moments of all parameters at once; on CUDA unless said otherwise.
        capturable: let a CUDA graph hold a step under GradScaler.

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
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
        }
        super().__init__(params, plan, options)

    def _step_group(self, group: dict[str, Any], names: dict[int, str], gate: float | Tensor) -> None:
        beta1, beta2 = group["betas"]
        params, grads, moments = [], [], []
        for param, grad in self._grads(group, gate):
            state = self.state[param]
            if not state:
                state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            params.append(param)
            grads.append(grad)
            moments.append(local_rows(state["exp_avg"])[0])
        if not params:
            return
        at_once = wants_foreach(group, grads[0]) and not isinstance(gate, Tensor)
        means = (
            torch._foreach_lerp(moments, grads, 1 - beta1)
            if at_once
            else [moment.lerp(grad, 1 - beta1) for moment, grad in zip(moments, grads, strict=True)]
        )
        for param, mean in zip(params, means, strict=True):
            sign = mean.sign_()
            branches = self._branches_of(names.get(id(param)), param)
            update = sign if branches is None else sum_over(branches, sign, partial(_of_branch, sign))
            local = local_rows(param)[0]
            lr = gated(group["lr"], gate, local)
            if group["weight_decay"]:
                local.mul_(1 - lr * group["weight_decay"])
            local.sub_(update.mul_(lr))
        if at_once:
            torch._foreach_lerp_(moments, grads, 1 - beta2)
            return
        for moment, grad in zip(moments, grads, strict=True):
            moment.lerp_(grad, gated(1 - beta2, gate, moment))


def _of_branch(sign: Tensor, entries: Entries) -> Tensor:
    return entries.read(sign) * entries.values
