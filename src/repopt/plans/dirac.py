"""Dirac initialization: a plain kernel and the identity, for plain SGD. No search, no scales, nothing attached.

    W'(0)  =  W  +  embed_identity(1)

The simplest relative of the method, and its baseline: what remains if only the identity is kept, as in DiracNets.
"""

import torch
from torch import nn

from repopt.algebra import csla
from repopt.algebra.sharding import write_rows_
from repopt.plans.planning import Plan, check_plan


@torch.no_grad()
def dirac_init_(
    model: nn.Module, plan: Plan, kernel: csla.Convention = "authors", generator: torch.Generator | None = None
) -> None:
    """Draws the planned operators' kernels anew, and adds 1 on the diagonal of those that have an identity branch.

    Train the model with any optimizer as it is. Biases and other parameters are left alone.

    Args:
        model: the model, or a copy of it.
        plan: which operators; of its branches only the identities count, its scales do not.
        kernel: `authors` (torch's default for a convolution) or `paper` (MSRA).
        generator: for reproducible draws.

    Example:
        >>> dirac_init_(net, plan)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    """
    check_plan(plan)
    modules = plan.on(model).modules()
    for name, module in modules.items():
        csla.check_has_values(module.weight, name)
    for name, module in modules.items():
        weight = module.weight
        drawn = csla.drawn(weight.shape, weight, kernel, generator)
        identity = next((placed for placed in plan.blocks[name].branches.values() if placed.is_identity), None)
        if identity is not None:
            identity.view(drawn).add_(1)
        write_rows_(weight, drawn)
