"""A step's closure, found among the arguments that a step hook is given and replaced by a wrapped one."""

from collections.abc import Callable
from typing import Any

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any]


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Closure], Closure]) -> Arguments | None:
    """The arguments with their closure wrapped, or None if there is no closure; args[0] is the optimizer."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    if len(args) > 1:
        return (args[0], wrap(closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": wrap(closure)}
