"""A copy of a model, also where hooks compute weights of it, as those of pruning and of the older weight norm do."""

import copy
from typing import TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(model: ModuleT) -> ModuleT:
    """A deep copy; what hooks have computed, which torch does not copy, they compute anew in the copy.

    A view of a parameter nothing computes anew: torch refuses to copy it, as it should.
    """
    computed = [
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf and not isinstance(value._base, nn.Parameter)
    ]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})
