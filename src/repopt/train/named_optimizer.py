"""The optimizers that a recipe may name."""

import difflib

import torch
from torch.optim import Optimizer

from repopt import optim
from repopt.optim.rules import RULES
from repopt.plans.wording import joined


def optimizer_named(name: str) -> type[Optimizer]:
    """The optimizer of this name in torch; in repopt.optim where torch has none, which is Lion."""
    bases = (Optimizer, optim.RepOptimizer)
    kinds = {
        label: kind
        for label, kind in {**vars(optim), **vars(torch.optim)}.items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind not in bases
    }
    if name not in kinds:
        known = {label.lower(): label for label in kinds}
        near = difflib.get_close_matches(name.lower(), known) or ["sgd", "adamw"]
        raise ValueError(f"torch.optim has no {name!r}: did you mean {joined((known[each] for each in near), 'or')}?")
    if name in RULES and RULES[name].route is None:
        raise ValueError(f"{name} is not supported: it {RULES[name].why}")
    return kinds[name]
