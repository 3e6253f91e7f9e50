"""The scales that ship: a Hyper-Search on CIFAR-100 for every model, each family by its own recipe."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from paper.jobs import Scope, kept_scales, search_job, search_recipe_of
from paper.tables import Table, TableRow
from paper.view import View, accuracy
from paper.workshop import Workshop, figures_of
from repopt.files import replacing

_VGGS = ("nano", "a0", "a1", "a2", "b0", "b1", "b2", "b3", "l1", "l2")
_MODELS = (*(f"repopt_vgg_{size}" for size in _VGGS), "repopt_ghostnet_050", "repopt_ghostnet_100")
_QUICK = ("repopt_vgg_nano", "repopt_ghostnet_050")


def _rows(scope: Scope) -> Iterator[TableRow]:
    for model in _QUICK if scope.quick else _MODELS:
        key = {"model": model, "recipe": search_recipe_of(model), "seed": scope.search_seed}
        yield TableRow(key=key, measure=partial(_measure, scope, model))


def _measure(scope: Scope, model: str, workshop: Workshop) -> list[dict[str, Any]]:
    run, kept = workshop.run(search_job(scope, model)), kept_scales(workshop, model)
    kept.parent.mkdir(exist_ok=True)
    with replacing(kept) as unfinished:
        unfinished.write_bytes((run / "scales.safetensors").read_bytes())
    return [figures_of(run)]


TABLE = Table(
    name="zoo",
    title="Searched scales",
    keys=("model", "recipe", "seed"),
    others=_rows,
    data=("cifar100",),
    view=View(
        order={"model": _MODELS},
        columns=["model", "recipe", "seed", accuracy("search accuracy"), "precision", "hardware", "date"],
    ),
)
