"""A copy of a model that shares nothing with it, or the reason why there is none.

Weights that hooks compute, as those of pruning and of the older weight norm do, are computed anew in the copy.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_OF_TORCH = {*vars(nn.Module()), "_compiled_call_impl"}
_HOLDING = (nn.Module, FunctionType, MethodType, partial, list, tuple, dict)


def copied(model: ModuleT, *, training: bool | None = None) -> ModuleT:
    """A deep copy, in train or eval mode where one is asked for.

    Raises:
        ValueError: the model keeps a view of a parameter, or a function that was made around it, which a copy would
            compute with the original's weights.
    """
    known = dict.fromkeys(model.modules())
    kept = [(module, name, value) for module in known for name, value in vars(module).items()]
    computed = [value for _, _, value in kept if isinstance(value, Tensor) and not value.is_leaf]
    if any(isinstance(value._base, nn.Parameter) for value in computed):  # which nothing computes anew
        raise ValueError("the model keeps a view of a parameter, which a copy would lose: make it in forward instead")
    for module, name, value in kept:
        if name in _OF_TORCH or hasattr(module, "_orig_mod"):  # hooks, and what torch compiles anew
            continue
        if any(each in known for each in _shared(value)):
            raise ValueError(
                f"the function kept as {name!r} was made around the model, and a copy would go on with the original: "
                "make it a method"
            )
    made = copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})
    if training is not None:
        made.train() if training else made.eval()  # not chained: those of the model's own may return nothing
    return made


def _shared(value: object) -> Iterator[nn.Module]:
    """The modules that a copy has in common with a value: functions are not copied, nor what they were made around."""
    left, seen = [(value, False)], set[tuple[int, bool]]()
    while left:
        each, shared = left.pop()
        if (id(each), shared) in seen:
            continue
        seen.add((id(each), shared))
        parts: Iterable[object] = ()
        if isinstance(each, FunctionType):
            shared, parts = True, _made_around(each)
        elif isinstance(each, MethodType):
            parts = (each.__func__, each.__self__)
        elif isinstance(each, partial):
            parts = (each.func, *each.args, *each.keywords.values())
        elif isinstance(each, list | tuple | dict):
            parts = each.values() if isinstance(each, dict) else each
        elif isinstance(each, nn.Module) and "_successor" in vars(each):  # what surgery took out
            parts = (each._successor,)
        elif shared and isinstance(each, nn.Module):
            yield each
        left += [(part, shared) for part in parts if isinstance(part, _HOLDING)]


def _made_around(function: FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of a cell that is still empty
            yield cell.cell_contents
