"""What an optimizer and a plan must agree on before the first step.

Held: the optimizer holds every planned weight that is trained.
Reached: a block's kernel is zero where no branch with a nonzero scale reaches, so a weight must be zero there too.
"""

import torch
from torch.optim import Optimizer

from repopt.algebra.csla import check_has_values
from repopt.algebra.multiplier import grad_mult
from repopt.algebra.sharding import local_rows
from repopt.plans.planning import Plan
from repopt.plans.stamps import params_of


def check_held(optimizer: Optimizer, plan: Plan) -> None:
    """Raises unless the optimizer holds every planned weight that requires a gradient."""
    held = set(map(id, params_of(optimizer)))
    if plan.blocks and not any(id(param) in held for param in plan.model.parameters()):
        raise ValueError(
            "the optimizer holds no parameter of the plan's model, perhaps those of a copy: make the plan on the model "
            "that is trained (for verify, with a factory that takes the plan: lambda params, plan: ...)"
        )
    weights = {name: module.weight for name, module in plan.modules().items()}
    missing = [name for name, weight in weights.items() if weight.requires_grad and id(weight) not in held]
    if missing:
        others = f" and of {len(missing) - 1} more planned operators" if len(missing) > 1 else ""
        raise ValueError(
            f"the optimizer does not hold the weight of {missing[0]!r}{others}: give it the parameters of the plan's "
            "model, or freeze the operator"
        )


@torch.no_grad()
def unreached(plan: Plan) -> str | None:
    """The first operator whose weight is not zero somewhere out of reach; None if there is none."""
    for name, module in plan.modules().items():
        constants = plan.constants(name)
        placements = plan.blocks[name].branches.items()
        if any(placement.covers and constants[branch].all() for branch, placement in placements):
            continue
        check_has_values(module.weight, name)
        local, rows = local_rows(module.weight)
        reach = grad_mult(plan.blocks[name], constants, degree=0, dtype=torch.float64, rows=rows).dense()
        if ((reach == 0) & (local.cpu() != 0)).any():
            return name
    return None


def check_reached(plan: Plan) -> None:
    """Raises if no block has the weight of some operator."""
    name = unreached(plan)
    if name is not None:
        raise ValueError(
            f"the weight of {name!r} is not zero at entries that no branch with a scale other than 0 reaches, so no "
            "block has it: call plan.init_(), zero these entries, or give the operator a branch that covers them"
        )
