"""The optimizers that a recipe may name."""

import torch
from torch.optim import Optimizer

from repopt import optim
from repopt.optim.rules import RULES
from repopt.plans.choices import instead_of


def optimizer_named(name: str) -> type[Optimizer]:
    """The optimizer of this name in torch; in repopt.optim where torch has none, which is Lion."""
    bases = (Optimizer, optim.RepOptimizer)
    kinds = {
        label: kind
        for label, kind in {**vars(optim), **vars(torch.optim)}.items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind not in bases
    }
    if name not in kinds:
        raise ValueError(f"torch.optim has no {name!r}: {instead_of(name, kinds)}")
    if name in RULES and RULES[name].route is None:
        raise ValueError(f"{name} is not supported: it {RULES[name].why}")
    return kinds[name]
