"""What both routes need that let a stand-in take an optimizer's step: aliases, options, and the hooks around it.

The stand-in is the same optimizer, with other parameters. What closures and hooks change meanwhile is passed on to it,
and what its rule changes is passed back.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Closure = Callable[[], Any]
Group = dict[str, Any]


def aliases_of(params: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Parameters that share the memory, and torch's version, of these, but have a gradient of their own."""
    return {param: nn.Parameter(param.detach(), requires_grad=param.requires_grad) for param in params}


def settle_(aliases: Mapping[Tensor, Tensor]) -> None:
    """Gives parameters the memory of their aliases, where these had others assigned to `.data`."""
    for param, alias in aliases.items():
        if param.data_ptr() != alias.data_ptr():
            param.data = alias.data


def clear_grads_(aliases: Mapping[Tensor, Tensor]) -> None:
    """Takes gradients that aliases were given before from those whose parameters have none now."""
    for param, alias in aliases.items():
        if param.grad is None:
            alias.grad = None


def drop_grads_(aliases: Mapping[Tensor, Tensor]) -> None:
    """Drops the gradients of parameters whose aliases have lost theirs: the rule called `zero_grad`."""
    for param, alias in aliases.items():
        if alias.grad is None:
            param.grad = None


def pass_on_(groups: Sequence[Group], others: Sequence[Group], known: Sequence[Group]) -> None:
    """Gives the param groups of another optimizer the options that changed here since both had the known ones."""
    for group, other, before in zip(groups, others, known, strict=True):
        changed = {key: value for key, value in group.items() if before.get(key, before) is not value}
        changed = {key: value for key, value in changed.items() if key not in {"params", "param_names"}}
        other.update(changed)
        before.update(changed)


def step_hooks(optimizer: Optimizer, before: Callable[..., Any], after: Callable[..., Any]) -> list[RemovableHandle]:
    """The two hooks of a step; the second comes before other ones, which find the step done."""
    hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
    ordered: Any = optimizer._optimizer_step_post_hooks  # an OrderedDict
    ordered.move_to_end(hooks[1].id, last=False)
    return hooks


def given_late(
    optimizer: Optimizer, hook: RemovableHandle, args: tuple[Any, ...], kwargs: dict[str, Any], give: Closure
) -> Arguments:
    """The arguments of a step without a closure; with one that gives gradients again, where hooks come after this one.

    A rule whose step takes no closure does not see what these hooks change.
    """
    is_last = next(reversed(optimizer._optimizer_step_pre_hooks)) == hook.id
    if is_last or "closure" not in inspect.signature(type(optimizer).step).parameters:
        return args, kwargs
    return ((args[0], give, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": give})


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Closure], Closure]) -> Arguments | None:
    """The arguments with their closure wrapped, or None if there is no closure; args[0] is the optimizer."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    if len(args) > 1:
        return (args[0], wrap(closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": wrap(closure)}
