"""A copy of a model, also where hooks compute weights of it, as those of pruning and of the older weight norm do."""

import copy
from typing import TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(model: ModuleT) -> ModuleT:
    """A deep copy; what hooks have computed, which torch does not copy, they compute anew in the copy."""
    computed = [
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
    if any(isinstance(value._base, nn.Parameter) for value in computed):  # which nothing computes anew
        raise ValueError("the model keeps a view of a parameter, which a copy would lose: make it in forward instead")
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})
