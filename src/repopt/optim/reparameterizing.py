"""reparameterize(): plan, Rule of Initialization and attach in one call."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from repopt.optim.attachment import Handle, attach_as_is
from repopt.plans.patterns import Branches, Chooser
from repopt.plans.planning import ScalesLike, plan


def reparameterize(
    model: nn.Module,
    optimizer: Optimizer,
    branches: Branches | Chooser | str | None = "repvgg",
    scales: ScalesLike | None = "depth",
    *,
    init: bool,
) -> Handle:
    """Makes an optimizer train a plain model as if its operators were blocks of branches.

    The short form of `plan`, `plan.init_` and `attach`, for their usual settings. Train as ever from here on.

    Args:
        model: any model.
        optimizer: an optimizer that holds the model's parameters and has not taken a step.
        branches: as for `plan`: a preset, {pattern: branches}, a function, or None for what the model declares itself.
        scales: as for `plan`.
        init: True draws the planned kernels anew, for a model that is trained from scratch. False keeps them, for
            one that is trained already. There is no default, since either one is wrong for the other model.

    Returns:
        The handle of `attach`; `handle.plan` is the plan, and `print(handle.plan)` shows it.

    Raises:
        ValueError: as `plan` and `attach` do. The weights are then as they were.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> handle = reparameterize(model, optimizer, init=True)
    """
    if not isinstance(init, bool):
        raise TypeError(
            f"init is True (draw the planned kernels anew) or False (keep the weights as they are), not {init!r}"
        )
    planned = plan(model, branches, scales)
    if not init:
        return attach_as_is(optimizer, planned)
    weights = [module.weight for module in planned.modules().values()]
    before = [weight.detach().clone() for weight in weights]
    kernels = planned.init_()
    try:
        return attach_as_is(optimizer, planned, kernels=kernels)
    except Exception:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
        raise
