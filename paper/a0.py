"""Does the smallest VGG lose to RepVGG, and why? Searched scales as they are, and with changes that would show it.

A change is looked for on Imagenette; on CIFAR-100 it has to help without having been chosen there.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from torch import Tensor

from paper.jobs import HyperSearch, Training, planned
from paper.tables import Table
from paper.view import SEEDS, View, accuracy, minus, text
from repopt.plans.scales import Scales
from repopt.train.recipe import search

_FLOOR = 0.3  # of an operator's mean scale


def blended(scales: Scales, other: Scales, share: float) -> Scales:
    """Scales a share of the way from one set to another; identities, which the other lacks, stay."""
    return _changed(scales, lambda scale, operator, branch: scale.lerp(other[operator].get(branch, scale), share))


def floored(scales: Scales, share: float) -> Scales:
    """Scales of which none is smaller, sign aside, than a share of its operator's mean: no tap is nearly frozen."""

    def raised(scale: Tensor, _: str, branch: str) -> Tensor:
        at_least = share * scale.abs().mean() * (branch != "identity")
        return scale.abs().clamp(min=at_least).copysign(scale)

    return _changed(scales, raised)


def _changed(scales: Scales, change: Callable[[Tensor, str, str], Tensor]) -> Scales:
    kept = {
        operator: {branch: change(scale, operator, branch) for branch, scale in branches.items()}
        for operator, branches in scales.items()
    }
    return Scales(kept, scales.metadata)


_HIGHER = "clipped to 5"  # of RepOpt alone
_REPVGG: dict[str, Any] = {"method": "repvgg"}
_OURS: dict[str, Any] = {"scales": "searched"}
_SETTINGS: dict[str, dict[str, Any]] = {
    "twice the learning rate": {"lr": 0.2},
    "half the learning rate": {"lr": 0.05},
    "clipped to 1": {"clip": 1.0},
    _HIGHER: {"clip": 5.0},
    "five times the weight decay": {"weight_decay": 2e-4},
}
_VARIANTS: dict[str, dict[str, Any]] = {
    "RepVGG": _REPVGG,
    **{f"RepVGG, {name}": {**_REPVGG, "fields": fields} for name, fields in _SETTINGS.items() if name != _HIGHER},
    "searched": _OURS,
    **{name: {**_OURS, "fields": fields} for name, fields in _SETTINGS.items()},
    "no frozen taps": {**_OURS, "change": lambda scales, _: floored(scales, _FLOOR)},
    "half-way to the search's start": {
        **_OURS,
        "change": lambda scales, model: blended(scales, Scales.depth_init(planned(model)), 0.5),
    },
    "mean over channels": {"scales": "mean"},
    "searched with smoothing": {"scales": HyperSearch(recipe=replace(search(), label_smoothing=0.1))},
    "searched with He's kernels": {"scales": HyperSearch(recipe=replace(search(), kernel="paper"))},
}

TABLE = Table(
    title="Does A0 lose to RepVGG?",
    keys=("data", "way", "model", "seed"),
    trainings=[
        Training(model="a0", key={"data": data, "way": name}, data=data, **fields)
        for data, (name, fields) in product(("imagenette", "cifar100"), _VARIANTS.items())
    ],
    view=View(
        by=("data", "way"),
        order={"way": list(_VARIANTS)},
        columns=["data", text("way", "variant"), SEEDS, accuracy(), minus("RepVGG"), minus("searched")],
    ),
)
