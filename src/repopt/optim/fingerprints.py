"""An optimizer's state is good only for the scales that it was made with: a fingerprint of them travels with it.

The multiplier is a function of the scales and is never saved. Its fingerprint is an option of every param group, since
other keys get lost in distributed checkpoints, and a state that has none, or another one, is refused.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from repopt.plans.planning import Plan

KEY = "repopt"


def fingerprint(plan: Plan, route: str) -> str:
    """A short text that differs if an operator, a branch, a constant or the route does."""
    digest = hashlib.sha256()
    for name in sorted(plan.operators):
        constants = plan.constants(name)
        for branch in sorted(constants):
            placement = plan.blocks[name].branches[branch]
            constant = constants[branch].double().expand(placement.operator.out_channels)
            digest.update(f"{name}\n{branch}\n{placement.operator.kernel_shape}\n".encode())
            digest.update(constant.contiguous().numpy().tobytes())
    return f"{route}-{digest.hexdigest()[:16]}"


def stamp_(optimizer: Optimizer, mark: str) -> None:
    """Puts the fingerprint into every param group, those of later as well.

    Raises:
        ValueError: the optimizer already holds the state of other steps than this plan's.
    """
    check_state(optimizer.state, optimizer.param_groups, mark)
    optimizer.defaults[KEY] = mark
    for group in optimizer.param_groups:
        group[KEY] = mark


@contextmanager
def stamping(optimizer: Optimizer, mark: str) -> Iterator[None]:
    """Stamps an optimizer; one that could not be attached then has the marks that it had before."""
    before = [(options, options.get(KEY)) for options in (optimizer.defaults, *optimizer.param_groups)]
    stamp_(optimizer, mark)
    try:
        yield
    except Exception:
        for options, earlier in before:
            if earlier is None:
                del options[KEY]
            else:
                options[KEY] = earlier
        raise


def unstamp_(optimizer: Optimizer) -> None:
    for options in (optimizer.defaults, *optimizer.param_groups):
        options.pop(KEY, None)


def refuse_other_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """A load_state_dict pre-hook: refuses a state with no fingerprint or another one, before anything is changed."""
    check_state(state_dict["state"], state_dict["param_groups"], optimizer.defaults[KEY])


def check_state(state: Mapping[Any, Any], groups: list[dict[str, Any]], mark: str) -> None:
    """Raises if there is a state, and its fingerprint is not this one."""
    marks = {group[KEY] for group in groups if KEY in group}
    if marks == {mark}:
        return
    if marks:
        raise ValueError(
            f"the optimizer's state was made with other scales, branches or another route ({', '.join(sorted(marks))}, "
            f"not {mark}): use the plan that it was made with, or start without it"
        )
    if any(_has_stepped(its) for its in state.values()):
        raise ValueError(
            "the optimizer's state carries no fingerprint of scales, so it is that of plain training or was detached: "
            "attach before the first step, or start without it"
        )


def _has_stepped(state: Any) -> bool:
    """Whether a parameter's state is more than what an optimizer's constructor leaves there."""
    if not isinstance(state, Mapping):
        return False
    if "step" in state:
        return float(state["step"]) > 0
    return any(
        _has_stepped(value) or (isinstance(value, Tensor) and not is_constant(value)) for value in state.values()
    )


def is_constant(value: Tensor) -> bool:
    """Whether all entries are alike, as those of a state that was only made are."""
    return bool((value == value.flatten()[:1]).all())
