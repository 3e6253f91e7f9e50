"""The scales behind an optimizer's state: the multiplier is a function of them and is never saved.

Their fingerprint travels in every param group (other keys get lost in distributed checkpoints). A state with another
one is refused, and so is one with none, unless it has not seen a step.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from repopt.plans.planning import Plan
from repopt.plans.stamps import KEY, SAVED, WORKED_IN


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
    """Puts the fingerprint into every param group, later groups included.

    Raises:
        ValueError: the optimizer already holds the state of other steps than this plan's.
    """
    check_state(optimizer.state, optimizer.param_groups, mark, is_constant)
    optimizer.defaults[KEY] = mark
    WORKED_IN.add(optimizer)
    stamp_groups_(optimizer)


def stamp_groups_(optimizer: Optimizer) -> None:
    """Also a load_state_dict post-hook: the groups of a new optimizer's empty state have no stamp."""
    for group in optimizer.param_groups:
        group[KEY] = optimizer.defaults[KEY]


@contextmanager
def stamping(optimizer: Optimizer, mark: str) -> Iterator[None]:
    """Stamps an optimizer; one that could not be attached then has the marks that it had before."""
    before = [(options, options.get(KEY)) for options in (optimizer.defaults, *optimizer.param_groups)]
    stamp_(optimizer, mark)
    try:
        yield
    except Exception:
        WORKED_IN.discard(optimizer)
        for options, earlier in before:
            if earlier is None:
                del options[KEY]
            else:
                options[KEY] = earlier
        raise


def unstamp_(optimizer: Optimizer) -> None:
    WORKED_IN.discard(optimizer)
    for options in (optimizer.defaults, *optimizer.param_groups):
        options.pop(KEY, None)


def guard_loading(optimizer: Optimizer) -> list[RemovableHandle]:
    """Refuses states with another fingerprint, or with none, before anything is changed; the stamp outlives a load."""
    return [
        optimizer.register_load_state_dict_pre_hook(_refuse_other_state),
        optimizer.register_load_state_dict_post_hook(stamp_groups_),
    ]


def check_loaded(optimizer: Optimizer) -> None:
    """Raises if the state that an optimizer has loaded, by a method of its own, has another fingerprint or none."""
    loaded = [group for group in optimizer.param_groups if SAVED in group or KEY not in group]
    state = {param: optimizer.state.get(param) for group in loaded for param in group["params"]}
    check_state(state, loaded, optimizer.defaults[KEY], _is_zero)


def _refuse_other_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    state, groups = map(state_dict.get, ("state", "param_groups")) if isinstance(state_dict, Mapping) else (None, None)
    if not isinstance(state, Mapping) or not isinstance(groups, list) or not all(map(_is_group, groups)):
        raise ValueError("this is not an optimizer's state: load what optimizer.state_dict() returned")
    check_state(state, groups, optimizer.defaults[KEY], _is_zero)


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("params"), list)


def check_state(
    state: Mapping[Any, Any], groups: list[dict[str, Any]], mark: str, is_unused: Callable[[Tensor], bool]
) -> None:
    """Raises if there is a state, and its fingerprint is not this one or its branches are missing.

    Args:
        state: an optimizer's, or a saved one.
        groups: its param groups.
        mark: the fingerprint.
        is_unused: whether a tensor of a state has not seen a step.
    """
    marks = {str(group[KEY]) for group in groups if KEY in group}
    if marks - {mark}:
        raise ValueError(
            "the optimizer's state was made with other scales, branches or another route "
            f"({', '.join(sorted(marks))}, not {mark}): use its own plan, or start without it"
        )
    if mark.startswith("branch-") and any(KEY in group and SAVED not in group for group in groups):
        raise ValueError(
            f"the optimizer's state lost its branches, the option {SAVED!r} of its param groups, as it does in torch's "
            "flattened state dicts: load what optimizer.state_dict() returned, or start without it"
        )
    unmarked = [param for group in groups if KEY not in group for param in group["params"]]
    entries = [state.get(param) for param in unmarked] if marks else state.values()
    if any(_has_stepped(entry, is_unused) for entry in entries):
        raise ValueError(
            "the optimizer's state carries no fingerprint of scales, so it is that of plain training or was detached: "
            "attach before the first step, or start without it"
        )


def _has_stepped(state: Any, is_unused: Callable[[Tensor], bool]) -> bool:
    """Whether a parameter's state is more than what an optimizer's constructor leaves there."""
    if not isinstance(state, Mapping):
        return False
    if "step" in state:
        return float(state["step"]) > 0
    return any(
        _has_stepped(value, is_unused) or (isinstance(value, Tensor) and not is_unused(value))
        for value in state.values()
    )


def _is_zero(value: Tensor) -> bool:
    return not value.any()


def is_constant(value: Tensor) -> bool:
    """Whether all entries are alike, as those of a state that was only made are."""
    return bool((value == value.flatten()[:1]).all())
