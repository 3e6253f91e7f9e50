"""The scales that ship: a Hyper-Search on CIFAR-100 for every model, each family by its own recipe."""

from collections.abc import Iterator, Sequence
from typing import Any

from paper.jobs import kept_scales, search_job, search_recipe_of
from paper.scope import Scope
from paper.summaries import markdown, spread
from paper.tables import Record, Row, Table
from paper.workshop import Workshop, figures_of
from repopt.files import replacing

# {model: minutes on one H200}
_VGGS = {"nano": 1.5, "a0": 1.5, "a1": 1.5, "a2": 2, "b0": 2, "b1": 3, "b2": 4, "b3": 5, "l1": 5, "l2": 7}
_GHOSTS = {"050": 5.0, "100": 6.0}


def _rows(scope: Scope) -> Iterator[Row]:
    for size, minutes in {"nano": 1}.items() if scope.quick else _VGGS.items():
        yield _row(scope, f"repopt_vgg_{size}", minutes)
    for size, minutes in {"050": 1}.items() if scope.quick else _GHOSTS.items():
        yield _row(scope, f"repopt_ghostnet_{size}", minutes)


def _row(scope: Scope, model: str, minutes: float) -> Row:
    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        run = workshop.run(search_job(scope, model))
        kept = kept_scales(workshop, model)
        kept.parent.mkdir(exist_ok=True)
        with replacing(kept) as unfinished:
            unfinished.write_bytes((run / "scales.safetensors").read_bytes())
        return [figures_of(run)]

    key = {"model": model, "recipe": search_recipe_of(model), "seed": scope.search_seed}
    return Row(key=key, measure=measure, minutes=minutes)


def _part(rows: Sequence[Record]) -> list[str]:
    places = {f"repopt_vgg_{size}": place for place, size in enumerate(_VGGS)}
    ranked = sorted(rows, key=lambda row: (places.get(row["model"], len(places)), row["model"]))
    cells = [
        (
            f"`{row['model']}`",
            row["recipe"],
            row["seed"],
            spread([row]),
            row["precision"],
            row["hardware"],
            row["date"],
        )
        for row in ranked
    ]
    columns = {"model": "<", "recipe": "<", "seed": ">", "search accuracy": ">", "precision": "<"}
    finished = next((row for row in rows if row["train_images"]), None)
    images = finished and f"{int(finished['train_images']):,} training and {int(finished['val_images']):,} test images"
    return [
        f"Searched on CIFAR-100{f', {images}' if images else ''}. The accuracy is the search model's own, at a stride "
        "of 32 in all, and does not say how good the scales are; the paper has 54.53 for B1. [The zoo](zoo.md) holds "
        "them.",
        "",
        *markdown({**columns, "hardware": "<", "date": "<"}, cells),
    ]


TABLE = Table(
    name="zoo",
    title="Searched scales",
    keys=("model", "recipe", "seed"),
    rows=_rows,
    part=_part,
    data=("cifar100",),
)
