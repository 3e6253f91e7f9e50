"""The scales that ship: a Hyper-Search on CIFAR-100 for every model, each family by its own recipe."""

from collections.abc import Iterator, Sequence
from typing import Any

from repopt.reproduce.jobs import search_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import markdown
from repopt.reproduce.tables import Record, Row, Table
from repopt.reproduce.workshop import Workshop, figures_of
from repopt.train.recipe import RECIPES

# {model: minutes on one H200}
_VGGS = {"nano": 1.5, "a0": 1.5, "a1": 1.5, "a2": 2, "b0": 2, "b1": 3, "b2": 4, "b3": 5, "l1": 5, "l2": 7}
_GHOSTS = {"050": 5.0, "100": 6.0}


def _rows(scope: Scope) -> Iterator[Row]:
    for size, minutes in {"nano": 1}.items() if scope.quick else _VGGS.items():
        yield _row(scope, f"repopt_vgg_{size}", "search", minutes)
    for size, minutes in {"050": 1}.items() if scope.quick else _GHOSTS.items():
        yield _row(scope, f"repopt_ghostnet_{size}", "ghost-search", minutes)


def _row(scope: Scope, model: str, recipe: str, minutes: float) -> Row:
    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        run = workshop.run(search_job(scope, model, scope.search_recipe(RECIPES[recipe]())))
        (workshop.folder / "zoo").mkdir(exist_ok=True)
        (workshop.folder / "zoo" / f"{model}.safetensors").write_bytes((run / "scales.safetensors").read_bytes())
        return [figures_of(run)]

    return Row(key={"model": model, "recipe": recipe, "seed": scope.seeds[0]}, measure=measure, minutes=minutes)


def _part(rows: Sequence[Record]) -> list[str]:
    cells = [
        (
            f"`{row['model']}`",
            row["recipe"],
            row["kernel"],
            row["seed"],
            f"{float(row['val_accuracy']):.2f}",
            row["hardware"],
            row["date"],
        )
        for row in rows
    ]
    columns = {"model": "<", "recipe": "<", "init": "<", "seed": ">", "search accuracy": ">"}
    return [
        "Searched on CIFAR-100, 50,000 training and 10,000 test images of 32 pixels. The accuracy is the search "
        "model's own; it "
        "does not say how good the scales are.",
        "",
        *markdown({**columns, "hardware": "<", "date": "<"}, cells),
    ]


TABLE = Table(name="zoo", title="Searched scales", keys=("model", "recipe", "seed"), rows=_rows, part=_part)
