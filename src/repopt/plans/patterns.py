"""Which modules of a model the patterns of a plan name: the first match wins, and no match is an error."""

import re
from collections.abc import Mapping, Sequence

from torch import nn

from repopt.algebra.branches import Branch
from repopt.algebra.operators import LinearOperator, check_weight, is_linear_operator
from repopt.plans.names import clean_modules, listed

Branches = Mapping[str, Sequence[Branch]]


def matching_operators(model: nn.Module, branches: Branches) -> dict[str, tuple[LinearOperator, Sequence[Branch]]]:
    """The operators that the patterns name, each with the branches of the first one that matches."""
    modules = clean_modules(model)
    patterns = [(_compiled(pattern), wanted) for pattern, wanted in branches.items()]
    if not patterns:
        raise ValueError("the plan is empty: give at least one {pattern: [branches]}")
    for pattern, _ in patterns:
        if not any(pattern.search(name) for name in modules):
            known = [name for name, module in modules.items() if is_linear_operator(module)]
            raise ValueError(
                f"the pattern {pattern.pattern!r} matches no module; the linear operators are {listed(known) or 'none'}"
            )
    operators: dict[str, tuple[LinearOperator, Sequence[Branch]]] = {}
    owners: dict[int, str] = {}
    for name, module in modules.items():
        match = next(((pattern, wanted) for pattern, wanted in patterns if pattern.search(name)), None)
        if match is None:
            continue
        if not is_linear_operator(module):
            raise TypeError(
                f"the pattern {match[0].pattern!r} matches {name!r}, a {type(module).__name__}, which is not a linear "
                "operator (Conv1d, Conv2d, Conv3d, Linear): narrow the pattern"
            )
        check_weight(module, name)
        owner = owners.setdefault(id(module.weight), name)
        if owner != name:
            raise ValueError(f"{owner!r} and {name!r} share one weight: plan it under one of the two names")
        operators[name] = (module, match[1])
    return operators


def declared_branches(model: nn.Module) -> Branches:
    """The branches that the model declares itself."""
    inner = clean_modules(model)[""]
    declare = getattr(inner, "repopt_branches", None)
    if declare is None:
        raise ValueError(
            f"{type(inner).__name__} does not declare its branches (a method repopt_branches): "
            "give plan(model, {pattern: [branches]})"
        )
    declared: Branches = declare()
    return declared


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}") from error
