"""What surgery took out stands in for what it put there, for whoever still holds it.

torch knows a module's children, and surgery replaces these. But a list, a lambda or a hook may hold the old module,
too, and would go on with weights that nobody trains, without a word.
"""

from typing import Any

from torch import nn


class StandIn:
    """A module that was replaced: calls and attributes go to the one in its place."""

    _successor: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._successor(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_successor":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._successor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._successor, name, value)

    def __repr__(self) -> str:
        return repr(self._successor)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:  # since pickle, too, asks for the class
        return StandIn, (), {"_successor": self._successor}

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return self._successor.__class__


def stand_in_(old: nn.Module, new: nn.Module) -> None:
    """Turns a module into a stand-in for another."""
    object.__setattr__(old, "__class__", StandIn)
    vars(old).clear()
    vars(old)["_successor"] = new
