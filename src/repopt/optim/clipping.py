"""Exact gradient clipping: by the norm that the imagined blocks' gradients would have.

    || dL/dW_b, all b ||^2  =  sum_b || s_b * view_b(g) ||^2  =  <g, M g>          with M the multiplier of degree 1

Scaling g by the coefficient scales every branch's gradient by it, so what follows is exact for every rule and route.
"""

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repopt.algebra.sharding import local_rows, shard_group
from repopt.plans.planning import Plan, check_plan


@torch.no_grad()
def clip_grad_norm_(plan: Plan, max_norm: float, error_if_nonfinite: bool = False) -> Tensor:
    """Clips the gradients of the plan's model to a norm, as `torch.nn.utils.clip_grad_norm_` would the real blocks'.

    Call it between `backward()` and `step()`, under GradScaler after `unscale_`.

    Args:
        plan: a plan with scales; every parameter of its model that has a gradient counts.
        max_norm: the largest norm that is left as it is.
        error_if_nonfinite: raise if the norm is NaN or infinite.

    Returns:
        The norm before clipping: of the imagined blocks' gradients and of the model's others.
    """
    check_plan(plan)
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be at least 0, not {max_norm}")
    names = {id(module.weight): name for name, module in plan.modules().items()}
    grads = [(param, param.grad) for param in plan.model.parameters() if param.grad is not None]
    if not grads:
        return torch.zeros(())
    whole: list[Tensor] = []
    sharded: dict[Any, list[Tensor]] = defaultdict(list)
    for param, grad in grads:
        local = local_rows(grad)[0]
        name = names.get(id(param))
        squares = _squared_norm(local) if name is None else plan.multiplier_of(name, param).squared_norm(local)
        ranks = shard_group(grad)
        (whole if ranks is None else sharded[ranks]).append(squares)
    total = _total(whole, sharded).sqrt()
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"the total norm of the gradients is {total.item()}, so they cannot be clipped")
    coefficient = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, grad in grads:
        local = local_rows(grad)[0]
        local.mul_(coefficient.to(local.device))
    return total


def _squared_norm(grad: Tensor) -> Tensor:
    dtype = torch.promote_types(grad.dtype, torch.float32)
    return torch.linalg.vector_norm(grad, dtype=dtype).square()  # type: ignore[no-any-return]


def _total(whole: list[Tensor], sharded: dict[Any, list[Tensor]]) -> Tensor:
    """The sum of all squares; what is sharded is added up by one all-reduce per process group."""
    sums = []
    for group, squares in sharded.items():
        held = _added(squares)
        dist.all_reduce(held, group=group)
        sums.append(held)
    return _added([*sums, *whole])


def _added(squares: list[Tensor]) -> Tensor:
    device = squares[0].device
    return torch.stack([square.to(device) for square in squares]).sum()
