"""What an optimizer and a plan must agree on: the weights that are stepped, and the scales behind its state.

Held: the optimizer holds every planned weight that is trained; asked at each step, as models and param groups change.
Reached: a block's kernel is zero where no branch with a nonzero scale reaches, so a weight must be zero there too.
Fingerprint: the multiplier is a function of the scales and is never saved. Its fingerprint travels in every param group
(other keys get lost in distributed checkpoints). A state with another one is refused, and so is one with none, unless
it has not seen a step.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from repopt.algebra.csla import check_has_values
from repopt.algebra.multiplier import grad_mult
from repopt.algebra.operators import LinearOperator
from repopt.algebra.sharding import local_rows
from repopt.plans.patterns import clean_modules
from repopt.plans.planning import Plan
from repopt.plans.stamps import KEY, SAVED, WORKED_IN, params_of

_PARAMETERS = attrgetter("_parameters")


class PlannedWeights:
    """The weights of a plan's operators, looked up by place: a module that was replaced is found, too."""

    def __init__(self, plan: Plan) -> None:
        modules = plan.modules()
        self._model = plan.model
        self._names, self._modules = list(modules), list(modules.values())
        self._known: tuple[list[int], list[int]] | None = None
        self._held: dict[str, Tensor] = {}
        self._others: dict[str, Tensor] = {}
        self._note_places()

    def _note_places(self) -> None:
        """Notes the operators and all modules above them, with where each is found."""
        parents = {
            child: (parent._modules, attribute, parent)
            for parent in self._model.modules()
            for attribute, child in parent._modules.items()
            if child is not None
        }
        places: dict[nn.Module, Any] = {}
        for module in self._modules:
            above: nn.Module = module
            while above in parents and above not in places:
                places[above] = parents[above]
                above = parents[above][2]
        # Asked before every step, so without a Python loop.
        self._parents = [place[0] for place in places.values()]
        self._attributes = [place[1] for place in places.values()]
        self._found = list(places)

    def now(self) -> dict[str, Tensor]:
        """Every planned weight as the model has it now, by operator."""
        weights = self._weights()
        self._check_parameters(weights)
        return dict(zip(self._names, weights, strict=True))

    def held_by(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The planned weights that an optimizer holds; the same dict as long as model and param groups do not change.

        Raises:
            RuntimeError: a weight is trained and has a gradient, but the optimizer does not hold it.
        """
        weights, groups = self._weights(), [group["params"] for group in optimizer.param_groups]
        known = list(map(id, chain(weights, *groups))), list(map(len, groups))
        if known != self._known:
            self._check_parameters(weights)
            self._known, ids = known, set(known[0][len(weights) :])
            found = dict(zip(self._names, weights, strict=True))
            self._held = {name: weight for name, weight in found.items() if id(weight) in ids}
            self._others = {name: weight for name, weight in found.items() if id(weight) not in ids}
        for name, weight in self._others.items():
            if weight.requires_grad and weight.grad is not None:
                raise RuntimeError(
                    f"the weight of {name!r} is trained but is not, or no longer, a parameter of the optimizer: add it "
                    "to a param group, or make and attach a new optimizer"
                )
        return self._held

    def _weights(self) -> list[Any]:
        found = list(map(dict.get, self._parents, self._attributes))
        if found != self._found:
            self._modules = self._found_again()
            self._note_places()
        return list(map(dict.get, map(_PARAMETERS, self._modules), repeat("weight")))

    def _check_parameters(self, weights: list[Any]) -> None:
        for name, weight in zip(self._names, weights, strict=True):
            if weight is None:
                raise RuntimeError(
                    f"the weight of {name!r} is no parameter of its module any more, since it was pruned or "
                    "parametrized: undo that, or make a new plan without the operator"
                )

    def _found_again(self) -> list[LinearOperator]:
        """The operators that have the names now; one that had its name stays where it was put into another module."""
        known, there, found = clean_modules(self._model), set(self._model.modules()), list[LinearOperator]()
        for name, before in zip(self._names, self._modules, strict=True):
            module = known.get(name)
            if not isinstance(module, LinearOperator):
                module = before
            if module not in there:
                raise RuntimeError(f"there is no linear operator at {name!r} any more: make a new plan")
            found.append(module)
        return found


def refuse_copy(protocol: SupportsIndex) -> Any:
    raise TypeError(
        "an optimizer that repopt works in cannot be copied or pickled, since what ties it to its plan would be lost: "
        "save its state_dict(), or detach() its handle first where it was attached"
    )


def check_held(optimizer: Optimizer, plan: Plan) -> None:
    """Raises unless the optimizer holds every planned weight that requires a gradient."""
    held = set(map(id, params_of(optimizer)))
    if plan.blocks and not any(id(param) in held for param in plan.model.parameters()):
        raise ValueError(
            "the optimizer holds no parameter of the plan's model, perhaps those of a copy: make the plan on the model "
            "that is trained (for verify, with a factory that takes the plan: lambda params, plan: ...)"
        )
    weights = {name: module.weight for name, module in plan.modules().items()}
    missing = [name for name, weight in weights.items() if weight.requires_grad and id(weight) not in held]
    if missing:
        others = f" and of {len(missing) - 1} more planned operators" if len(missing) > 1 else ""
        raise ValueError(
            f"the optimizer does not hold the weight of {missing[0]!r}{others}: give it the parameters of the plan's "
            "model, or freeze the operator"
        )


@torch.no_grad()
def unreached(plan: Plan) -> str | None:
    """The first operator whose weight is not zero somewhere out of reach; None if there is none."""
    for name, module in plan.modules().items():
        constants = plan.constants(name)
        placements = plan.blocks[name].branches.items()
        if any(placement.covers and constants[branch].all() for branch, placement in placements):
            continue
        check_has_values(module.weight, name)
        local, rows = local_rows(module.weight)
        reach = grad_mult(plan.blocks[name], constants, degree=0, dtype=torch.float64, rows=rows).dense()
        if ((reach == 0) & (local.cpu() != 0)).any():
            return name
    return None


def check_reached(plan: Plan) -> None:
    """Raises if no block has the weight of some operator."""
    name = unreached(plan)
    if name is not None:
        raise ValueError(
            f"the weight of {name!r} is not zero at entries that no branch with a scale other than 0 reaches, so no "
            "block has it: call plan.init_(), zero these entries, or give the operator a branch that covers them"
        )


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
