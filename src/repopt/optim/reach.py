"""A block cannot have every kernel: its equivalent kernel is zero where no branch with a scale other than 0 reaches."""

import torch

from repopt.algebra.multiplier import grad_mult
from repopt.algebra.sharding import local_rows
from repopt.plans.planning import Plan


@torch.no_grad()
def unreached(plan: Plan) -> str | None:
    """The first operator whose weight is not zero somewhere out of reach; None if there is none."""
    for name, module in plan.modules().items():
        constants = plan.constants(name)
        placements = plan.blocks[name].branches.items()
        if any(placement.covers and constants[branch].all() for branch, placement in placements):
            continue
        local, rows = local_rows(module.weight)
        reach = grad_mult(plan.blocks[name], constants, degree=0, dtype=torch.float64, rows=rows).dense()
        if ((reach == 0) & (local.cpu() != 0)).any():
            return name
    return None


def check_reached(plan: Plan) -> None:
    """Raises if an operator's weight is no block's."""
    name = unreached(plan)
    if name is not None:
        raise ValueError(
            f"the weight of {name!r} is not zero at entries that no branch with a scale other than 0 reaches, so it is "
            "no block's: call plan.init_(), zero these entries, or give the operator a branch that covers them"
        )
