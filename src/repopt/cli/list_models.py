"""`repopt list`: the models with their sizes, and the scales that ship, with the searches that found them."""

from dataclasses import asdict
from functools import cache

import torch

import repopt
from repopt.cli.output import print_json, table
from repopt.cli.screen import Screen
from repopt.models.counting import multiply_adds, parameters
from repopt.plans.provenance import Provenance, provenance
from repopt.plans.scales import Scales, shipped


def list_models(scales: bool = False, json: bool = False) -> int:
    """List the models with their sizes, or the scales that ship.

    Example: repopt list --scales

    Args:
        scales: list the scales, each with the search that found it.
        json: print JSON instead.
    """
    if scales:
        _list_scales(json=json)
    elif json:
        print_json({name: _sizes(name) for name in repopt.list_models()})
    else:
        _list_sizes()
    return 0


def _sizes(name: str) -> dict[str, int | bool]:
    with torch.device("meta"):
        trained = parameters(repopt.create_model(name))
    return {"parameters": trained, "macs": _macs(_plain(name)), "scales": name in shipped()}


def _plain(name: str) -> str:
    """The plain model with the same deploy form."""
    family, _, size = name.rpartition("_")
    return f"repopt_{'ghostnet' if 'ghost' in family else 'vgg'}_{size}"


@cache
def _macs(name: str) -> int:
    with torch.device("meta"):
        model = repopt.create_model(name)
    return multiply_adds(model)


def _list_sizes() -> None:
    shown = table("model", "parameters, M", "MACs, 10^9", "scales")
    for name in repopt.list_models():
        sizes = _sizes(name)
        ship = "ship" if sizes["scales"] else ""
        shown.add_row(name, f"{sizes['parameters'] / 1e6:.2f}", f"{sizes['macs'] / 1e9:.2f}", ship)
    Screen().print(shown)
    print("Parameters in training, 1000 classes; multiply-adds of one 224x224 image, deployed.")
    print("--model also takes timm:NAME, torchvision:NAME, and package.module:factory for one of your own.")


def _list_scales(*, json: bool) -> None:
    found = {name: provenance(Scales.load(name)) for name in shipped()}
    if json:
        print_json([{"name": name, **(asdict(origin) if origin else {})} for name, origin in found.items()])
        return
    shown = table("scales", "searched on", "accuracy", "epochs", "seed", "date")
    shown.columns[0].no_wrap, shown.columns[1].justify = True, "left"
    for name, origin in found.items():
        shown.add_row(name, *_cells(origin))
    Screen().print(shown)


def _cells(origin: Provenance | None) -> tuple[str, ...]:
    if origin is None:
        return ("unknown",)
    return origin.data, f"{origin.accuracy:.2f}", str(origin.epochs), str(origin.seed), origin.date
