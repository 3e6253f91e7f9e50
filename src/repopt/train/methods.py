"""The methods that are compared: which model is trained, and by which optimizer.

repopt      the plain model, its gradients multiplied: what this library is for
sgd         the plain model as it is
dirac       the plain model, its kernels drawn anew with an identity added, trained as it is
repvgg      the real multi-branch model, with a norm in each branch; converted afterwards
branches    the same for any model: its branches built for real, a norm in each; merged afterwards
qarepvgg    either, in the form that quantizes better
csla        the blocks that repopt imagines, built for real: equal to repopt, and slower
search      the Hyper-Search model
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repopt import optim
from repopt.models import RepGhostNet, RepVGG
from repopt.models.references import is_reference
from repopt.optim.attachment import attach_as_is, automatic_route
from repopt.optim.clipping import clip_grad_norm_
from repopt.optim.decay import decay_groups
from repopt.plans.choices import instead_of
from repopt.plans.dirac import dirac_init_
from repopt.plans.drawn import as_torch_draws
from repopt.plans.planning import Plan, ScalesLike, plan
from repopt.plans.scales import Scales
from repopt.plans.stamps import params_of
from repopt.plans.wording import listed
from repopt.surgery.blocks import Norm
from repopt.surgery.conversion import branch_model, csla_model, search_blocks, search_model
from repopt.surgery.freezing import freeze
from repopt.train.branch_choice import BranchChoice, as_branches, chosen
from repopt.train.named_optimizer import optimizer_named
from repopt.train.recipe import Recipe
from repopt.train.step import LR_FACTOR

Method = Literal["repopt", "sgd", "dirac", "branches", "repvgg", "qarepvgg", "csla", "search"]
METHODS: tuple[Method, ...] = get_args(Method)
PLANNED: tuple[Method, ...] = ("repopt", "dirac", "branches", "csla", "search")  # those that plan the model's branches
LEARN = "learn"  # instead of scales: those of a search that is the first part of the same training


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is trained.

    Attributes:
        method: how.
        model: the model.
        plan: the plan of a plain model whose optimizer is re-parameterized.
        kernels: the branch kernels of the imagined blocks, as drawn.
        searching: whether the model is a search model, whose scales are trained.
        branches: what was planned; None for a method without branches, and where the model declares them itself.
        scales: those of the plan, where it was given some.
        left_out: operators that the plan could not hold, with the reason.
        redrawn: operators that had weights of their own, other than torch draws them, and have new ones now.
    """

    method: Method
    model: nn.Module
    plan: Plan | None = None
    kernels: dict[str, Any] | None = None
    searching: bool = False
    branches: BranchChoice | None = None
    scales: Scales | None = None
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    redrawn: tuple[str, ...] = ()


def make_subject(
    method: Method,
    model: nn.Module,
    recipe: Recipe,
    *,
    scales: ScalesLike | None = None,
    drawn: bool = True,
    branches: BranchChoice | None = None,
) -> Subject:
    """Turns a model into what a method trains.

    Args:
        method: which.
        model: the model that `counterpart` names; it is changed in place.
        recipe: its conventions and seed.
        scales: for `repopt` and `csla`; for `repopt` also `learn`, which begins with a search model, see `frozen`.
        drawn: False where the weights were loaded, so that the Rule of Initialization does not apply.
        branches: of the methods that plan some, see `plans_branches`; the model's own unless given, or else `repvgg`.
    """
    if scales == LEARN:
        _check_learnable(method, recipe, drawn=drawn)
    built = method == "branches" or (method == "qarepvgg" and not isinstance(model, RepVGG | RepGhostNet))
    if method not in PLANNED and not built:
        if branches is not None:
            raise ValueError(f"the method {method} has no branches to plan: leave --branches out")
        return Subject(method=method, model=model)
    branches = chosen(branches, model)
    bare = plan(model, as_branches(branches))
    initialized = drawn and not (method == "repopt" and recipe.rules == "iteration")
    redrawn = _to_be_redrawn(bare, method) if initialized else ()
    subject = Subject(method=method, model=model, branches=branches, left_out=bare.left_out, redrawn=redrawn)
    draw = torch.Generator().manual_seed(recipe.seed)
    if method == "search" or scales == LEARN:
        searching = search_model(model, bare, start=recipe.start, kernel=recipe.kernel, generator=draw, inplace=True)
        return dataclasses.replace(subject, model=searching, searching=True)
    if method == "dirac":
        if drawn:
            dirac_init_(model, bare, recipe.kernel, draw)
        return subject
    if built:
        if not drawn:
            raise ValueError(f"the method {method} draws the kernels of its branches: leave --weights out")
        norm: Norm = "qarepvgg" if method == "qarepvgg" else True
        real = branch_model(model, bare, norm, kernel=recipe.kernel, generator=draw, inplace=True)
        return dataclasses.replace(subject, model=real)
    if scales is None:
        learn = ", 'depth' or 'learn'" if method == "repopt" else " or 'depth'"
        raise ValueError(
            f"the method {method} needs scales: give --scales, a file, 'ones'{learn}, or search some first"
        )
    if not recipe.decay_identity:
        raise ValueError(
            f"with the method {method} identities are decayed as the kernels are: decay_identity is for searches"
        )
    if method == "csla" and recipe.rules != "both":
        raise ValueError(
            f"real blocks follow both rules: the recipe's rules {recipe.rules!r} are for the method repopt"
        )
    planned = bare.with_scales(scales)
    kernels = planned.init_(kernel=recipe.kernel, identity=recipe.identity, generator=draw) if initialized else None
    subject = dataclasses.replace(subject, scales=planned.scales)
    if recipe.rules == "initialization":
        return subject
    if method == "csla":
        return dataclasses.replace(subject, model=csla_model(model, planned, kernels, inplace=True))
    return dataclasses.replace(subject, plan=planned, kernels=kernels)


def _to_be_redrawn(bare: Plan, method: Method) -> tuple[str, ...]:
    """The operators whose weights are others than torch draws; raises where one is frozen, as only trained ones are."""
    modules = bare.modules()
    if kept := [name for name, module in modules.items() if not module.weight.requires_grad]:
        raise ValueError(
            f"the method {method} draws kernels anew, and the model comes with frozen ones ({listed(kept)}): let it "
            "come with all of them trainable, leave the frozen ones out by --branches, or take the method sgd"
        )
    return tuple(name for name, module in modules.items() if not as_torch_draws(module.weight))


def _check_learnable(method: Method, recipe: Recipe, *, drawn: bool) -> None:
    for fits, wanted in (
        (method == "repopt", f"are for the method repopt, not for {method}"),
        (drawn, "come with kernels of their own, which are drawn: leave --weights out"),
        (recipe.decay_identity, "go on as a plain model, whose diagonal is decayed: leave decay_identity on"),
        (recipe.rules == "both", "follow both rules: leave rules out"),
        (
            not issubclass(optimizer_named(recipe.optimizer), optim.RepOptimizer),
            f"go on with an attached optimizer, which {recipe.optimizer} cannot be: take another --optimizer",
        ),
    ):
        if not fits:
            raise ValueError(f"scales that are learned {wanted}")


def frozen(subject: Subject, optimizer: Optimizer, scales: Mapping[str, Mapping[str, Tensor]] | None = None) -> Subject:
    """The plain model that a search model goes on as; its optimizer is re-parameterized in place.

    Args:
        subject: the search model.
        optimizer: the one that trains it.
        scales: to freeze it with, instead of its own.
    """
    if scales is not None:
        for name, block in search_blocks(subject.model).items():
            block.take_(scales[name])
    model, _, handle = freeze(subject.model, optimizer)
    return dataclasses.replace(subject, model=model, plan=handle.plan, searching=False)


def searched_scales(subject: Subject) -> dict[str, dict[str, Tensor]]:
    """The scales of a search model as they are now, or those that a plain model was frozen with."""
    if subject.plan is not None and subject.plan.scales is not None:
        return {name: dict(scales) for name, scales in subject.plan.scales.items()}
    return {name: block.searched() for name, block in search_blocks(subject.model).items()}


def scale_means(subject: Subject) -> dict[str, dict[str, float]]:
    """The mean of each branch's scales, all read from the device at once."""
    searched = searched_scales(subject)
    flat = iter(torch.stack([scale.mean() for scales in searched.values() for scale in scales.values()]).tolist())
    return {name: {branch: next(flat) for branch in scales} for name, scales in searched.items()}


def make_optimizer(subject: Subject, recipe: Recipe, lr: float | Tensor, *, graph: bool = False) -> Optimizer:
    """The recipe's optimizer, re-parameterized where the subject has a plan."""
    factor = (recipe.scale_lr or 1.0) if subject.searching else 1.0
    scale_lr = lr * factor if factor != 1 else None
    groups = decay_groups(subject.model, recipe.weight_decay, identity=recipe.decay_identity, scale_lr=scale_lr)
    if scale_lr is not None:
        groups[-1][LR_FACTOR] = factor
    kind = optimizer_named(recipe.optimizer)
    options: dict[str, Any] = {"lr": lr}
    if kind is torch.optim.SGD:
        options |= {"momentum": recipe.momentum, "nesterov": recipe.nesterov and recipe.momentum > 0}
    if graph and kind is not torch.optim.SGD:
        options["capturable"] = True
    own = issubclass(kind, optim.RepOptimizer)  # torch has no such optimizer
    if own or (subject.plan is not None and _has_closed_form(recipe)):
        trained = subject.plan or Plan.empty(subject.model)
        closed: Optimizer = getattr(optim, recipe.optimizer)(groups, trained, **options)
        return closed
    if kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        # torch's fused SGD starts its momentum from uninitialized memory if GradScaler skips the first step
        options["fused"] = kind is not torch.optim.SGD or recipe.precision != "fp16"
    if recipe.weight_decay and "weight_decay" not in signature(kind).parameters:
        raise ValueError(f"{recipe.optimizer} has no weight decay: give --weight-decay 0")
    optimizer: Optimizer = kind(groups, **options)
    if kind is torch.optim.SGD and recipe.momentum and options["fused"]:
        _start_momentum_(optimizer)
    if subject.plan is not None:
        attach_as_is(optimizer, subject.plan, kernels=subject.kernels)
    elif subject.method == "repopt":  # it learns its scales, and is attached when they are frozen
        automatic_route(optimizer)
    return optimizer


def _start_momentum_(optimizer: Optimizer) -> None:
    """From 0, which is the same: torch's fused SGD fails where some have momentum and a layer was left out so far."""
    for param in params_of(optimizer):
        optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)


def _has_closed_form(recipe: Recipe) -> bool:
    """Whether repopt.optim has the recipe's optimizer; Adam only without L2, which would go into its moments."""
    return hasattr(optim, recipe.optimizer) and not (recipe.optimizer == "Adam" and recipe.weight_decay)


def can_be_captured(subject: Subject, recipe: Recipe) -> bool:
    """Whether the recipe's optimizer steps without reading from the device, so that a CUDA graph can replay it."""
    if subject.plan is not None and _has_closed_form(recipe):
        return True
    return recipe.optimizer == "SGD" or "capturable" in signature(optimizer_named(recipe.optimizer)).parameters


def clip_(subject: Subject, max_norm: float) -> None:
    """Clips the gradient: that of the imagined blocks where there are any."""
    if subject.plan is not None:
        clip_grad_norm_(subject.plan, max_norm)
    else:
        nn.utils.clip_grad_norm_(subject.model.parameters(), max_norm)


def plans_branches(name: str, method: Method) -> bool:
    """Whether a method plans the branches of a model; QARepVGGs of our own are models with branches already."""
    return method in PLANNED or (method == "qarepvgg" and is_reference(name))


def counterpart(name: str, method: Method) -> str:
    """The model that a method trains: `repopt_vgg_b1` is `repvgg_b1` with real branches."""
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}: {instead_of(method, METHODS)}")
    if is_reference(name) and method == "repvgg":
        raise ValueError(f"the method repvgg is for repopt's own models, not for {name}: take the method branches")
    real = re.fullmatch(r"(?:qa)?rep(vgg|ghostnet)_(\w+)", name)
    if real is not None and method in PLANNED:
        plain, own = f"repopt_{real[1]}_{real[2]}", "qarepvgg" if name.startswith("qa") else "repvgg"
        raise ValueError(f"{name} has real branches: give --model {plain}, and --method {own} to train it with them")
    found = re.fullmatch(r"repopt_(vgg|ghostnet)_(\w+)", name)
    if found is None or method not in ("repvgg", "qarepvgg"):
        return name
    if found[1] == "ghostnet" and method == "qarepvgg":
        raise ValueError("the method qarepvgg is for VGGs: a GhostNet has no such form")
    return f"{method}_{found[2]}" if found[1] == "vgg" else f"repghostnet_{found[2]}"
