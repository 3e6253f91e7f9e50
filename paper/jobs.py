"""The trainings that tables are made of: searches, and models trained with scales from several sources."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paper.scope import Scope
from paper.tables import TableRow
from paper.workshop import Workshop, figures_of
from repopt.models import create_model
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import Scales, shipped
from repopt.train.methods import Method
from repopt.train.recipe import RECIPES, Recipe, small
from repopt.train.training import Job

# where scales come from: our search, the authors' release, and Table 4's ablations
Source = Literal["searched", "authors", "ones", "depth", "mean"]
# what a search has to change for the images of other data
_FOR_DATA: dict[str, dict[str, Any]] = {
    "imagenette": {"size": 96, "crop_padding": 0, "resized_crop": (0.25, 1.0)},
    "digits": {"flip": False},
}


@dataclass(frozen=True, kw_only=True)
class HyperSearch:
    """A Hyper-Search: by the recipe of the model's family on CIFAR-100 unless given; `again` has another seed."""

    recipe: Recipe | None = None
    data: str = "cifar100"
    strides: tuple[int, ...] | None = None
    again: bool = False


AGAIN = "searched again"  # what tables call it
SEARCHED_AGAIN = HyperSearch(again=True)
NOT_SEARCHED = "not searched"  # the constants that a search starts from


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training of one of the tables.

    Attributes:
        model: by name, or by the size of a VGG.
        method: how it is trained.
        scales: where they come from.
        change: what is done to them, given the model's name.
        data: Imagenette by the paper's recipe, or CIFAR-100 by the recipe `small` for 60 epochs.
        recipe: another one.
        fields: that replace some of the recipe's.
        options: of the model.
    """

    model: str
    method: Method = "repopt"
    scales: Source | HyperSearch | None = None
    change: Callable[[Scales, str], Scales] = lambda scales, _: scales
    data: str = "imagenette"
    recipe: Recipe | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def training_row(scope: Scope, key: Mapping[str, Any], training: Training, seed: int, *, minutes: float) -> TableRow:
    """A row that is the outcome of one training; the key lacks the seed."""

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        return [figures_of(workshop.run(training_job(scope, workshop, training, seed)))]

    model, scales = scope.model(training.model), training.scales
    searched = isinstance(scales, HyperSearch) or (scales in ("searched", "mean") and model not in shipped())
    searches = {f"{model} {scales}": 2.5} if searched else {}
    key = {**key, "seed": seed}
    return TableRow(key=key, measure=measure, minutes=minutes, searches=searches, authors=scales == "authors")


def training_job(scope: Scope, workshop: Workshop, training: Training, seed: int) -> Job:
    model, scales = scope.model(training.model), None
    if training.scales is not None:
        scales = training.change(scales_from(training.scales, scope, workshop, model), model)
    elsewhere = replace(small(), epochs=60, eval_every=60) if training.data == "cifar100" else None
    base = training.recipe or elsewhere
    recipe = replace(scope.adapt(base, seed) if base else scope.target_recipe(seed), **training.fields)
    data = scope.search_data if training.data == "cifar100" else scope.target_data
    return Job(
        method=training.method,
        model=model,
        data=data,
        recipe=recipe,
        scales=scales,
        limit=scope.limit,
        options=dict(training.options),
    )


def search_job(scope: Scope, model: str, search: HyperSearch | None = None) -> Job:
    search = search or HyperSearch()
    recipe = search.recipe or RECIPES[search_recipe_of(model)]()
    data = scope.search_data
    if search.data != "cifar100" and not scope.quick:
        recipe = replace(recipe, **_FOR_DATA[search.data])
        data = scope.target_data if search.data == "imagenette" else search.data
    recipe = scope.adapt(recipe, scope.search_seed + search.again)
    options = {"strides": search.strides} if search.strides else {}
    return Job(method="search", model=model, data=data, recipe=recipe, limit=scope.limit, options=options)


def search_recipe_of(model: str) -> str:
    """The name of the recipe that a model's family is searched by."""
    return "ghost-search" if "ghostnet" in model else "search"


def scales_from(source: Source | HyperSearch, scope: Scope, workshop: Workshop, model: str) -> Scales:
    """A model's scales from one of the sources."""
    if isinstance(source, HyperSearch):
        return workshop.searched(search_job(scope, model, source))
    if source in ("ones", "depth"):
        return (Scales.ones if source == "ones" else Scales.depth_init)(planned(model))
    if source == "authors":
        return authors_scales(scope, model)
    own = own_scales(scope, workshop, model)
    return own.channel_mean() if source == "mean" else own


def own_scales(scope: Scope, workshop: Workshop, model: str) -> Scales:
    """Ours: those that ship, or that a search for the zoo has left in the workshop, or that a search finds now."""
    kept = kept_scales(workshop, model)
    if scope.quick or (model not in shipped() and not kept.exists()):
        return workshop.searched(search_job(scope, model))
    return Scales.load(model if model in shipped() else kept)


def kept_scales(workshop: Workshop, model: str) -> Path:
    """Where a workshop keeps what it searched for the zoo."""
    return workshop.folder / "zoo" / f"{model}.safetensors"


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


def int8_run(scope: Scope, workshop: Workshop, method: Method, seed: int) -> Path:
    """A B0 with its weights, for Table 8 and appendix C; plain SGD has He's init, which is better for it."""
    epochs = {} if scope.quick else {"epochs": 120, "eval_every": 120}
    fields = {**epochs, "kernel": "paper" if method == "sgd" else Recipe.kernel}
    scales: Source | None = "searched" if method == "repopt" else None
    training = Training(model="b0", method=method, scales=scales, data="cifar100", fields=fields)
    return workshop.run(training_job(scope, workshop, training, seed), weights=True)


def planned(model: str) -> Plan:
    return plan(create_model(model))


def has_identity(plan: Plan, operator: str) -> bool:
    """Whether an operator imagines an identity."""
    return any(placement.is_identity for placement in plan.blocks[operator].branches.values())
