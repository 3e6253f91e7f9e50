"""Which modules of a model a plan is about.

Operators are known by the name of their module, without what wrappers put into it. Of the patterns of a plan the first
match wins, and no match is an error. A function of name and module may choose instead.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from repopt.algebra.branches import Branch
from repopt.algebra.operators import LinearOperator, check_weight, is_linear_operator
from repopt.plans.wording import listed

Branches = Mapping[str, Sequence[Branch]]
Chooser = Callable[[str, LinearOperator], Sequence[Branch] | None]
Chosen = dict[str, tuple[LinearOperator, Sequence[Branch]]]
_TORCHS_WRAPPERS = (nn.DataParallel, DistributedDataParallel, AveragedModel)
WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module"})


def clean(name: str) -> str:
    """`module._orig_mod.stage1.0.conv` (DDP around torch.compile) as `stage1.0.conv`."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def clean_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module of the model by its name without wrappers; a module with two names is listed under both.

    A wrapper and what it wraps share a name; the wrapped module gets it. A child that is called as wrappers call theirs
    keeps its name in a module that is more than a wrapper.
    """
    modules: dict[str, nn.Module] = {}
    names: dict[str, str] = {}
    full_names: dict[str, str] = {}
    for full, module in model.named_modules(remove_duplicate=False):
        known = full_names.get(clean(full))
        if known and not full.startswith(f"{known}."):
            raise ValueError(
                f"the modules {known!r} and {full!r} are both called {clean(full)!r} once the names of wrappers are "
                "dropped: rename one of them"
            )
        full_names[clean(full)] = full
        parent, _, own = full.rpartition(".")
        above = names.get(parent, "")
        is_wrapped = not full or _is_wrapper(modules[above])
        names[full] = above if is_wrapped else f"{above}.{own}" if above else own
        modules[names[full]] = module
    return modules


def _is_wrapper(module: nn.Module) -> bool:
    """Whether a module is no more than the one in it, as those of DDP, torch.compile and AveragedModel are."""
    modules, buffers = set(module._modules.keys()), set(module._buffers.keys())  # lists in a scripted module
    holds_one_module = len(modules) == 1 and not module._parameters and buffers <= {"n_averaged"}
    return holds_one_module and modules <= WRAPPERS and not hasattr(type(module), "repopt_branches")


def unwrapped(model: nn.Module) -> nn.Module:
    """What torch's own wrappers hold: those of torch.compile, of data parallelism and of moving averages."""
    while isinstance(model, _TORCHS_WRAPPERS) or hasattr(model, "_orig_mod"):
        model = cast(nn.Module, model.module if isinstance(model, _TORCHS_WRAPPERS) else model._orig_mod)
    return model


def check_model(model: object, verb: str) -> None:
    """Raises unless this is a model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{verb} takes a model, not a {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{verb} takes the model before torch.jit: trace what comes of it afterwards")


def chosen_operators(model: nn.Module, choose: Chooser) -> Chosen:
    """The convolutions and linear layers for which a function of name and module returns branches."""
    operators: Chosen = {}
    for name, module in once_each(model).items():
        if not is_linear_operator(module):
            continue
        wanted = choose(name, module)
        if wanted is None:
            continue
        if not isinstance(wanted, list | tuple):
            raise TypeError(
                f"the function that chooses branches returned a {type(wanted).__name__} for {name!r}: it must return a "
                "list of branches, or None to leave the operator as it is"
            )
        check_weight(module, name)
        check_not_shared(model, module, name)
        operators[name] = (module, wanted)
    if not operators:
        raise ValueError(
            "the function that chooses branches returned None for every convolution and linear layer of this "
            f"{type(model).__name__}, so there is nothing to plan"
        )
    return operators


def once_each(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its clean name, the first where it has several."""
    names: dict[nn.Module, str] = {}
    for name, module in clean_modules(model).items():
        names.setdefault(module, name)
    return {name: module for module, name in names.items()}


def check_not_shared(model: nn.Module, operator: LinearOperator, name: str) -> None:
    """Raises if another module of the model has the operator's weight, too."""
    for other, module in model.named_modules():
        if module is not operator and any(param is operator.weight for param in module._parameters.values()):
            raise ValueError(
                f"{name!r} shares its weight with {other!r}, and a block would untie them: give it one of its own"
            )


def check_plain_forward(operator: LinearOperator, name: str) -> None:
    """Raises where a block of plain branches in the operator's place would compute something else."""
    plain = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear) if isinstance(operator, kind))
    if any(
        verb in vars(operator) or getattr(type(operator), verb, None) is not getattr(plain, verb, None)
        for verb in ("forward", "_conv_forward")
    ):
        raise ValueError(
            f"{name!r} is a {type(operator).__name__} with a forward of its own, which a block of plain branches does "
            "not have: leave it out of the plan"
        )
    if operator.bias is not None and not isinstance(operator.bias, nn.Parameter):
        raise ValueError(
            f"the bias of {name!r} is computed from other parameters (a parametrization), which a block of plain "
            "branches does not have: remove the parametrization or leave the operator out of the plan"
        )


def matching_operators(model: nn.Module, branches: Branches) -> Chosen:
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
    operators: Chosen = {}
    owners: dict[int, str] = {}
    used: set[str] = set()
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
        used.add(match[0].pattern)
    for pattern, _ in patterns:
        if pattern.pattern not in used:
            raise ValueError(
                f"the pattern {pattern.pattern!r} has no effect: every module that it matches is matched by a pattern "
                "before it, and the first match counts"
            )
    return operators


def _compiled(pattern: str) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise TypeError(
            f"the pattern {pattern!r} is a {type(pattern).__name__}: it must be a regular expression, a text"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}") from error
