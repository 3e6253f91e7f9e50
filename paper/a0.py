"""Does the smallest VGG lose to RepVGG, and why? Searched scales as they are, and with changes that would show it.

A change is looked for on Imagenette; on CIFAR-100 it has to help without having been chosen there.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from paper.jobs import HyperSearch, Training, planned, training_row
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, View, accuracy, minus, text
from repopt.plans.scales import Scales
from repopt.train.recipe import search

_FLOOR = 0.3  # of an operator's mean scale


def blended(scales: Scales, other: Scales, share: float) -> Scales:
    """Scales a share of the way from one set to another; identities, which the other lacks, stay."""
    return Scales(
        {
            operator: {
                branch: scale if branch not in other[operator] else scale.lerp(other[operator][branch], share)
                for branch, scale in branches.items()
            }
            for operator, branches in scales.items()
        },
        scales.metadata,
    )


def floored(scales: Scales, share: float) -> Scales:
    """Scales of which none is smaller, sign aside, than a share of its operator's mean: no tap is nearly frozen."""
    kept: dict[str, dict[str, Any]] = {}
    for operator, branches in scales.items():
        kept[operator] = dict(branches)
        for branch in branches.keys() - {"identity"}:
            scale = branches[branch]
            kept[operator][branch] = scale.abs().clamp(min=share * scale.abs().mean()).copysign(scale)
    return Scales(kept, scales.metadata)


def _ours(fields: dict[str, Any] | None = None, **given: Any) -> Training:
    return Training(model="a0", **{"scales": "searched", **given}, fields=fields or {})


_RATES = {"twice the learning rate": {"lr": 0.2}, "half the learning rate": {"lr": 0.05}}
_DECAY = {"five times the weight decay": {"weight_decay": 2e-4}}
_REAL = {"": {}, **_RATES, "clipped to 1": {"clip": 1.0}, **_DECAY}
_VARIANTS = {
    **{
        f"RepVGG{', ' if change else ''}{change}": Training(model="a0", method="repvgg", fields=fields)
        for change, fields in _REAL.items()
    },
    "searched": _ours(),
    **{
        change: _ours(fields)
        for change, fields in {**_RATES, "clipped to 1": {"clip": 1.0}, "clipped to 5": {"clip": 5.0}, **_DECAY}.items()
    },
    "no frozen taps": _ours(change=lambda scales, _: floored(scales, _FLOOR)),
    "half-way to the search's start": _ours(
        change=lambda scales, model: blended(scales, Scales.depth_init(planned(model)), 0.5)
    ),
    "mean over channels": _ours(scales="mean"),
    "searched with smoothing": _ours(scales=HyperSearch(recipe=replace(search(), label_smoothing=0.1))),
    "searched with He's kernels": _ours(scales=HyperSearch(recipe=replace(search(), kernel="paper"))),
}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for data in ("imagenette",) if scope.quick else ("imagenette", "cifar100"):
        for seed, (name, training) in product(scope.seeds, _VARIANTS.items()):
            key = {"data": data, "way": name, "model": scope.model("a0")}
            yield training_row(scope, key, replace(training, data=data), seed, minutes=0.2)


TABLE = Table(
    name="a0",
    title="Does A0 lose to RepVGG?",
    keys=("data", "way", "model", "seed"),
    rows=_rows,
    view=View(
        by=("data", "way"),
        order={"way": list(_VARIANTS)},
        columns=["data", text("way", "variant"), SEEDS, accuracy(), minus("RepVGG"), minus("searched")],
    ),
)
