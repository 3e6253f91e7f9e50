"""What the parts of a model declare about themselves: the branches of their operators, and how deep these lie.

A part is the model itself or, where that declares nothing, a module inside it, such as the backbone of a detector. What
a part says is in its own names; the functions here give it in the model's.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from repopt.algebra.branches import Branch
from repopt.plans.patterns import Branches, clean, clean_modules, matching_operators
from repopt.plans.wording import listed


def declaring_parts(model: nn.Module, method: str = "repopt_branches") -> dict[str, nn.Module]:
    """The outermost modules that have the method, by what stands before the names of their operators."""
    parts: dict[str, nn.Module] = {}
    for name, module in clean_modules(model).items():
        known = any(f"{name}.".startswith(part) or module is owner for part, owner in parts.items())
        if hasattr(module, method) and not known:
            parts[f"{name}." if name else ""] = module
    return parts


def declared_branches(model: nn.Module) -> Branches:
    """The branches that the model declares, or the parts of it that do."""
    parts = declaring_parts(model)
    if not parts:
        raise ValueError(
            f"{type(clean_modules(model)['']).__name__} does not declare its branches (a method repopt_branches), nor "
            'does a module in it: give plan(model, {pattern: [branches]}), or a preset: plan(model, "repvgg")'
        )
    found: dict[str, Sequence[Branch]] = {}
    for part, module in parts.items():
        declared: Branches = module.repopt_branches()  # type: ignore[operator]
        if not part:
            return declared
        if not isinstance(declared, Mapping):
            raise TypeError(f"repopt_branches() of {part[:-1]!r} must return {{pattern: [branches]}}, not {declared!r}")
        for name, (_, wanted) in matching_operators(module, declared).items():
            found[f"^{re.escape(part + name)}$"] = wanted
    return found


def declared_depths(model: nn.Module, operators: Collection[str]) -> dict[str, int]:
    """How deep operators lie in their stages, as far as the model's parts say it."""
    depths: dict[str, int] = {}
    for part, module in declaring_parts(model, "repopt_depths").items():
        declared = module.repopt_depths()  # type: ignore[operator]
        if declared is None:
            continue
        if not isinstance(declared, Mapping) or not all(isinstance(at, int) and at >= 0 for at in declared.values()):
            raise ValueError(
                f"the model's repopt_depths() must return {{operator: whole number from 0 on}}, not {declared!r}"
            )
        said = {clean(part + name): depth for name, depth in declared.items()}
        missing = [name for name in operators if name.startswith(part) and clean(name) not in said]
        if missing:
            raise ValueError(
                f"the model's repopt_depths() does not say how deep {listed(missing)} lies: let it name every planned "
                "operator, or give the scales another start than their depth"
            )
        depths |= {name: said[clean(name)] for name in operators if name.startswith(part)}
    return depths


def names_in_parts(model: nn.Module, operators: Collection[str]) -> dict[str, list[str]]:
    """The operators by the clean name that they have in the model, and by the one in its declaring part."""
    names = {clean(operator): [operator] for operator in operators}
    known = set(names)
    for part in declaring_parts(model):
        for operator in operators:
            own = clean(operator.removeprefix(part))
            if own not in known:
                names.setdefault(own, []).append(operator)
    return names


def left_out_of_parts(model: nn.Module) -> frozenset[str]:
    """Names of the modules that a whole model has and its backbone, the declaring part here, has not; nor another."""
    parts = declaring_parts(model).values()
    left_out = {name for part in parts for name in getattr(part, "left_out", ())}
    return frozenset(left_out.difference(*(clean_modules(part) for part in parts)))
