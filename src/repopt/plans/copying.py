"""A copy of a model, also where hooks compute weights of it, as those of pruning and of the older weight norm do."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(model: ModuleT) -> ModuleT:
    """A deep copy; what hooks have computed, which torch does not copy, they compute anew in the copy."""
    known = set(model.modules())
    kept = [(name, value) for module in known for name, value in vars(module).items()]
    computed = [value for _, value in kept if isinstance(value, Tensor) and not value.is_leaf]
    if any(isinstance(value._base, nn.Parameter) for value in computed):  # which nothing computes anew
        raise ValueError("the model keeps a view of a parameter, which a copy would lose: make it in forward instead")
    for name, value in kept:
        if any(isinstance(each, nn.Module) and each in known for each in closed_over(value)):
            raise ValueError(
                f"the function kept as {name!r} was made around the model, and a copy would go on with the original's: "
                "make it a method"
            )
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})


def closed_over(value: object) -> Iterator[object]:
    """What a function holds of the place where it was made; nothing for other objects."""
    for cell in (value.__closure__ or ()) if isinstance(value, FunctionType) else ():
        with suppress(ValueError):  # of a cell that is still empty
            yield cell.cell_contents
