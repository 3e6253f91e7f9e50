"""What surgery took out stands in for what it put there, for whoever still holds it.

torch knows a module's children, and surgery replaces these. But a list, a lambda or a hook may hold the old module,
too, and would go on with weights that nobody trains, without a word.
"""

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class StandIn:
    """A module that was replaced: calls and attributes go to the one in its place, by now the last of several."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return last_of(self)(*args, **kwargs)

    def _conv_forward(self, x: Tensor, *_: Tensor | None) -> Any:
        return last_of(self).forward(x)  # what a kept forward of a convolution calls

    def __getattr__(self, name: str) -> Any:
        if name == "_successor":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(last_of(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(last_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(last_of(self), name)

    def __dir__(self) -> Iterable[str]:
        return dir(last_of(self))

    def __repr__(self) -> str:
        return repr(last_of(self))

    def __copy__(self) -> Any:
        return copy.copy(last_of(self))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # since pickle, too, asks for the class
        return StandIn, (), {"_successor": last_of(self)}

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return type(last_of(self))


def stand_in_(old: nn.Module, new: nn.Module) -> None:
    """Turns a module into a stand-in for another; one whose class has slots stays what it is."""
    try:
        object.__setattr__(old, "__class__", StandIn)
    except TypeError:
        return
    vars(old).clear()
    vars(old)["_successor"] = new


def last_of(module: Any) -> Any:
    """The module that stands where this one stood; itself, if it was not replaced."""
    while type(module) is StandIn:
        module = module._successor
    return module
