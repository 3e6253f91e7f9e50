"""`repopt list`: the models, and the scales that ship, with the searches that found them."""

from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

import repopt
from repopt.cli.output import print_json
from repopt.plans.provenance import Provenance, provenance
from repopt.plans.scales import Scales, shipped


def list_models(scales: bool = False, json: bool = False) -> int:
    """List the models by name, or the scales that ship.

    Example: repopt list --scales

    Args:
        scales: list the scales, each with the search that found it.
        json: print JSON instead.
    """
    if not scales and json:
        print_json(repopt.list_models())
    elif not scales:
        print("\n".join(repopt.list_models()))
    else:
        _list_scales(json=json)
    return 0


def _list_scales(*, json: bool) -> None:
    found = {name: provenance(Scales.load(name)) for name in shipped()}
    if json:
        print_json([{"name": name, **(asdict(origin) if origin else {})} for name, origin in found.items()])
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("scales", no_wrap=True)
    table.add_column("searched on")
    for column in ("accuracy", "epochs", "seed", "date"):
        table.add_column(column, justify="right")
    for name, origin in found.items():
        table.add_row(name, *_cells(origin))
    Console().print(table)


def _cells(origin: Provenance | None) -> tuple[str, ...]:
    if origin is None:
        return ("unknown",)
    return origin.data, f"{origin.accuracy:.2f}", str(origin.epochs), str(origin.seed), origin.date
