"""Exact gradient clipping: by the norm that the imagined blocks' gradients would have.

    || dL/dW_b, all b ||^2  =  sum_b || s_b * view_b(g) ||^2  =  <g, M g>          with M the multiplier of degree 1

Scaling g by the coefficient scales every branch's gradient by it, so what follows is exact for every rule and route.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from numbers import Real
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
        The norm before clipping, over the gradients of the imagined blocks and of all other parameters.
    """
    check_plan(plan)
    check_max_norm(max_norm)
    names = {id(module.weight): name for name, module in plan.modules().items()}
    found = [(param, local_rows(param.grad)[0]) for param in plan.model.parameters() if param.grad is not None]
    if not found:
        warnings.warn(
            "no parameter of the plan's model has a gradient, so nothing is clipped: call it after backward(), and "
            "where a copy is trained, as after search_model or freeze, with the plan of that, handle.plan",
            stacklevel=3,
        )
        return torch.zeros(())
    total = block_norm(plan, [(param, grad, names.get(id(param))) for param, grad in found])
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(f"the total norm of the gradients is {total.item()}, so they cannot be clipped")
    clip = coefficient(total, max_norm)
    for _, grad in found:
        grad.mul_(clip.to(grad.device))
    return total


def check_max_norm(max_norm: Any) -> None:
    if isinstance(max_norm, bool) or not isinstance(max_norm, Real | Tensor) or not float(max_norm) >= 0:
        raise ValueError(f"max_norm must be a number of at least 0, not {max_norm!r}")


def clip_coefficient(
    plan: Plan, found: Sequence[tuple[Tensor, Tensor, str | None]], max_norm: float, grad_scale: Tensor | None
) -> Tensor:
    """What clips gradients to a norm, without a look at it from the host.

    Args:
        plan: a plan with scales.
        found: each parameter with the rows held here of its gradient, and with its operator's name if it is planned.
        max_norm: the largest norm that is left as it is.
        grad_scale: what the gradients are still multiplied by, under GradScaler.
    """
    return coefficient(block_norm(plan, found), max_norm, grad_scale)


def block_norm(plan: Plan, found: Sequence[tuple[Tensor, Tensor, str | None]]) -> Tensor:
    """The norm of all gradients, those of planned weights taken as their blocks' kernels have them."""
    whole: list[Tensor] = []
    sharded: dict[Any, list[Tensor]] = defaultdict(list)
    for param, grad, name in found:
        squares = _squared_norm(grad) if name is None else plan.multiplier_of(name, param).squared_norm(grad)
        ranks = shard_group(param)
        (whole if ranks is None else sharded[ranks]).append(squares)
    return _total(whole, sharded).sqrt()


def coefficient(total: Tensor, max_norm: float, grad_scale: Tensor | None = None) -> Tensor:
    """What clips gradients of this norm, as torch does; a `grad_scale` is still in the norm."""
    norm = total if grad_scale is None else total / grad_scale.to(total.device)
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


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
