"""Table 4: optimizers without knowledge of the model, both rules and each alone, and other constants."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, get_args

from paper.jobs import AGAIN, SEARCHED_AGAIN, HyperSearch, Source, Training
from paper.tables import Table
from paper.view import INITS, SEEDS, Column, Line, View, accuracy, minus, number, papers
from repopt.algebra.csla import Convention
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_INITS: tuple[Convention, ...] = get_args(Convention)
_SGD_RATES = (None, 0.05, 0.2)  # None is the recipe's


@dataclass(frozen=True, kw_only=True)
class _Optimizer:
    """A line of the paper's table, or one of ours beside it: how it is trained, and the settings that are tried."""

    paper: float | None = None  # accuracy on ImageNet
    method: Method = "sgd"
    scales: Source | HyperSearch | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float | None, ...] = (None,)
    inits: tuple[Convention, ...] = (Recipe.kernel,)


def _adaptive(paper: float, name: str, rates: tuple[float, ...], **fields: Any) -> _Optimizer:
    return _Optimizer(paper=paper, fields={"optimizer": name, **fields}, rates=rates, inits=_INITS)


def _repopt(paper: float | None, scales: Source | HyperSearch = "searched", **fields: Any) -> _Optimizer:
    return _Optimizer(paper=paper, scales=scales, fields=fields)


OPTIMIZERS = {
    "SGD": _Optimizer(paper=76.91, rates=_SGD_RATES, inits=_INITS),
    "RMSprop": _adaptive(76.72, "RMSprop", (1e-4, 3e-4, 1e-3, 3e-3)),
    "Adam": _adaptive(76.14, "Adam", (3e-4, 1e-3, 3e-3, 1e-2)),
    "AdamW": _adaptive(75.03, "AdamW", (3e-4, 1e-3, 3e-3, 1e-2), weight_decay=0.05),
    "Adafactor": _adaptive(74.69, "Adafactor", (1e-3, 3e-3, 1e-2, 3e-2), weight_decay=0.05),
    "SGD, RepVGG": _Optimizer(paper=78.41, method="repvgg", rates=_SGD_RATES),  # the paper's Table 2 has it
    "RepOptimizer": _repopt(78.47),
    f"RepOptimizer, {AGAIN}": _repopt(None, SEARCHED_AGAIN),
    "RepOptimizer, initialization unchanged": replace(_repopt(77.42, rules="iteration"), inits=_INITS),
    "RepOptimizer, gradients unmodified": _repopt(77.07, rules="initialization"),
    "RepOptimizer, all ones": _repopt(77.59, "ones"),
    "RepOptimizer, as the search starts": _repopt(77.71, "depth"),
    "RepOptimizer, mean over channels": _repopt(77.40, "mean"),
}
PAPER = {name: each.paper for name, each in OPTIMIZERS.items() if each.paper is not None}
PAPER_GAPS = {name: figure - PAPER["RepOptimizer"] for name, figure in PAPER.items() if name != "RepOptimizer"}


def _trainings() -> Iterator[Training]:
    """Of B1, which the paper has, and of A0, for which docs/results.md has the reason.

    The grids of the adaptive optimizers are wide: B1 with one seed, torch's init at the two highest rates only.
    """
    for size, (name, each) in product(("b1", "a0"), OPTIMIZERS.items()):
        adaptive = "optimizer" in each.fields
        for lr, init in product(each.rates, each.inits):
            if adaptive and (size == "a0" or (init == "authors" and lr in each.rates[:-2])):
                continue
            fields = {**each.fields, "kernel": init, **({} if lr is None else {"lr": lr})}
            about: dict[str, Any] = {"method": each.method, "scales": each.scales, "one_seed": adaptive}
            yield Training(model=size, key={"optimizer": name, "init": init, "rate": lr}, fields=fields, **about)


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
    title="Table 4: optimizers and ablations",
    keys=("optimizer", "model", "init", "rate", "seed"),
    trainings=list(_trainings()),
    view=View(
        by=("model", "optimizer"),
        best=("init", "rate"),
        order={"optimizer": list(OPTIMIZERS)},
        columns=[
            *("model", "optimizer", "init", number("lr", form="{:g}"), Column("tried, lr by init", _tried, False)),
            *(SEEDS, accuracy(), minus("RepOptimizer"), minus(f"RepOptimizer, {AGAIN}"), minus("SGD")),
            papers("paper", PAPER, "optimizer", form="{:.2f}"),
            papers("paper, minus RepOptimizer", PAPER_GAPS, "optimizer", form="{:+.2f}"),
        ],
    ),
)
