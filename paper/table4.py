"""Table 4: optimizers without knowledge of the model, both rules and each alone, and other constants."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from paper.jobs import AGAIN, SEARCHED_AGAIN, HyperSearch, Source, Training, training_row
from paper.rows import INITS
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, Column, Line, View, accuracy, minus, number, papers
from repopt.algebra.csla import Convention
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_SIZES = ("b1", "a0")  # the paper has B1; docs/results.md says why A0


@dataclass(frozen=True, kw_only=True)
class _Optimizer:
    """A line of the paper's table, or one of ours beside it: how it is trained, and the settings that are tried."""

    paper: float | None = None  # accuracy on ImageNet
    method: Method = "sgd"
    scales: Source | HyperSearch | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float | None, ...] = (None,)
    inits: tuple[Convention, ...] = (Recipe.kernel,)

    @property
    def adaptive(self) -> bool:
        return "optimizer" in self.fields

    @property
    def tried(self) -> list[tuple[float | None, Convention]]:
        """Learning rates and inits; an adaptive optimizer, whose grid is wide, has torch's at the two highest only."""
        pairs = itertools.product(self.rates, self.inits)
        return [(lr, init) for lr, init in pairs if not (self.adaptive and init == "authors" and lr in self.rates[:-2])]


_INITS: tuple[Convention, ...] = get_args(Convention)
_SGD_RATES = (None, 0.05, 0.2)  # None is the recipe's


def _adaptive(paper: float, name: str, rates: tuple[float, ...], **fields: Any) -> _Optimizer:
    return _Optimizer(paper=paper, fields={"optimizer": name, **fields}, rates=rates, inits=_INITS)


OPTIMIZERS = {
    "SGD": _Optimizer(paper=76.91, rates=_SGD_RATES, inits=_INITS),
    "RMSprop": _adaptive(76.72, "RMSprop", (1e-4, 3e-4, 1e-3, 3e-3)),
    "Adam": _adaptive(76.14, "Adam", (3e-4, 1e-3, 3e-3, 1e-2)),
    "AdamW": _adaptive(75.03, "AdamW", (3e-4, 1e-3, 3e-3, 1e-2), weight_decay=0.05),
    "Adafactor": _adaptive(74.69, "Adafactor", (1e-3, 3e-3, 1e-2, 3e-2), weight_decay=0.05),
    "SGD, RepVGG": _Optimizer(paper=78.41, method="repvgg", rates=_SGD_RATES),  # the paper's Table 2 has it
    "RepOptimizer": _Optimizer(paper=78.47, scales="searched"),
    f"RepOptimizer, {AGAIN}": _Optimizer(scales=SEARCHED_AGAIN),
    "RepOptimizer, initialization unchanged": _Optimizer(
        paper=77.42, scales="searched", fields={"rules": "iteration"}, inits=_INITS
    ),
    "RepOptimizer, gradients unmodified": _Optimizer(
        paper=77.07, scales="searched", fields={"rules": "initialization"}
    ),
    "RepOptimizer, all ones": _Optimizer(paper=77.59, scales="ones"),
    "RepOptimizer, as the search starts": _Optimizer(paper=77.71, scales="depth"),
    "RepOptimizer, mean over channels": _Optimizer(paper=77.40, scales="mean"),
}
PAPER = {name: each.paper for name, each in OPTIMIZERS.items() if each.paper is not None}

PAPER_GAPS = {name: figure - PAPER["RepOptimizer"] for name, figure in PAPER.items() if name != "RepOptimizer"}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for size, (name, each) in itertools.product(_SIZES[:1] if scope.quick else _SIZES, OPTIMIZERS.items()):
        if each.adaptive and size != _SIZES[0]:
            continue
        # the adaptive optimizers' grids are searched with one seed; the others show how much seeds differ
        for seed, (lr, init) in itertools.product(scope.seeds[:1] if each.adaptive else scope.seeds, each.tried):
            fields = {**each.fields, "kernel": init, **({} if lr is None else {"lr": lr})}
            method: Method = "repopt" if each.scales else each.method
            training = Training(model=size, method=method, scales=each.scales, fields=fields)
            key = {"optimizer": name, "model": scope.model(size), "init": init, "rate": lr}
            yield training_row(scope, key, training, seed, minutes=0.2)


def _tried(line: Line) -> str:
    """The learning rates that were tried, by init, and whether the best one lies at the edge."""
    rates: dict[str, set[float]] = {}
    for row in line.tried:
        rates.setdefault(row["init"], set()).update(float(rate) for rate in [row["lr"] or row["rate"]] if rate)
    own, chosen = rates[line["init"]], float(line["lr"])
    edge = {max(own): ", the highest is best", min(own): ", the lowest is best"} if len(own) > 1 else {}
    listed = {
        init: f"{INITS[init]}: {', '.join(f'{rate:g}' for rate in sorted(found))}" for init, found in rates.items()
    }
    listed[line["init"]] += edge.get(chosen, "")
    return "; ".join(listed.values())


TABLE = Table(
    name="table4",
    title="Table 4: optimizers and ablations",
    keys=("optimizer", "model", "init", "rate", "seed"),
    rows=_rows,
    view=View(
        by=("model", "optimizer"),
        best=("init", "rate"),
        order={"optimizer": list(OPTIMIZERS)},
        columns=[
            *("model", "optimizer", "init", number("lr", form="{:g}"), Column("tried, lr by init", _tried, False)),
            *(SEEDS, accuracy(), minus("RepOptimizer"), minus(f"RepOptimizer, {AGAIN}"), minus("SGD")),
            papers("paper", PAPER, "optimizer", "{:.2f}"),
            papers("paper, minus RepOptimizer", PAPER_GAPS, "optimizer", "{:+.2f}"),
        ],
    ),
)
