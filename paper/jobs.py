"""The trainings that tables are made of: searches, and models trained with scales from several sources."""

import dataclasses
from pathlib import Path
from typing import Any, Final, Literal

from paper.scope import Scope
from paper.workshop import Workshop
from repopt.models import create_model
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import Scales, shipped
from repopt.train.methods import Method
from repopt.train.recipe import RECIPES, Recipe, small
from repopt.train.training import Job

# where constants come from: our search, one like it with another seed, the authors' released ones, Table 4's ablations
Source = Literal["searched", "searched again", "authors", "ones", "depth", "mean"]
AGAIN: Final = "searched again"


def search_job(
    scope: Scope,
    model: str,
    recipe: Recipe | None = None,
    *,
    data: str | None = None,
    options: dict[str, Any] | None = None,
) -> Job:
    """A Hyper-Search: on CIFAR-100 by the recipe of the model's family unless told otherwise."""
    return Job(
        method="search",
        model=model,
        data=data or scope.search_data,
        recipe=recipe or scope.search_recipe(RECIPES[search_recipe_of(model)]()),
        limit=scope.limit,
        options=options or {},
    )


def search_recipe_of(model: str) -> str:
    """The name of the recipe that a model's family is searched by."""
    return "ghost-search" if "ghostnet" in model else "search"


def training_job(
    scope: Scope, model: str, method: Method, seed: int, scales: Scales | None = None, **fields: Any
) -> Job:
    """A training on Imagenette; fields replace those of its recipe."""
    recipe = dataclasses.replace(scope.target_recipe(seed), **fields)
    data = scope.target_data
    return Job(method=method, model=model, data=data, recipe=recipe, scales=scales, limit=scope.limit)


def cifar_job(scope: Scope, model: str, method: Method, seed: int, scales: Scales | None = None, **fields: Any) -> Job:
    """A training on CIFAR-100 by the recipe `small`, 60 epochs; fields replace those of its recipe."""
    recipe = scope.adapt(dataclasses.replace(small(), epochs=60, eval_every=60), seed)
    recipe = dataclasses.replace(recipe, **fields)
    data = scope.search_data
    return Job(method=method, model=model, data=data, recipe=recipe, scales=scales, limit=scope.limit)


def own_scales(scope: Scope, workshop: Workshop, model: str) -> Scales:
    """Ours: those that ship, or that a search for the zoo has left in the workshop, or else that a search finds now."""
    if scope.quick:
        return workshop.searched(search_job(scope, model))
    if model in shipped():
        return Scales.load(model)
    kept = kept_scales(workshop, model)
    return Scales.load(kept) if kept.exists() else workshop.searched(search_job(scope, model))


def kept_scales(workshop: Workshop, model: str) -> Path:
    """Where a workshop keeps what it searched for the zoo."""
    return workshop.folder / "zoo" / f"{model}.safetensors"


def search_left(model: str, minutes: float) -> dict[str, float]:
    """The search that a row with our scales has to wait for, as `Row.searches` names it; none for scales that ship."""
    return {} if model in shipped() else {model: minutes}


def scales_from(source: Source, scope: Scope, workshop: Workshop, model: str) -> Scales:
    """A model's scales from one of the sources."""
    if source == "ones":
        return Scales.ones(planned(model))
    if source == "depth":
        return Scales.depth_init(planned(model))
    if source == "authors":
        return authors_scales(scope, model)
    if source == AGAIN:
        return workshop.searched(search_job(scope.another_search, model))
    own = own_scales(scope, workshop, model)
    return own.channel_mean() if source == "mean" else own


def authors_scales(scope: Scope, model: str) -> Scales:
    """Those that the paper's authors released for a model."""
    if scope.authors is None:
        raise ValueError("give --authors, the folder of the .pth files that the paper's authors released")
    size = model.rpartition("_")[2]
    theirs = f"{int(size) / 100}x".replace(".", "_") if "ghostnet" in model else size.upper()  # 050 is 0_5x
    found = sorted(scope.authors.glob(f"*{theirs}*.pth"))
    if not found:
        raise ValueError(f"{str(scope.authors)!r} holds no .pth file for {theirs}")
    return Scales.load(found[0])


def planned(model: str) -> Plan:
    return plan(create_model(model))


def has_identity(plan: Plan, operator: str) -> bool:
    """Whether an operator imagines an identity."""
    return any(placement.is_identity for placement in plan.blocks[operator].branches.values())
