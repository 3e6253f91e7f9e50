"""Table 4: optimizers without knowledge of the model, both rules and each alone, and other constants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from repopt.reproduce.jobs import Source, scales_from, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import difference, groups, markdown, matching, mean, setting, spread
from repopt.reproduce.tables import Record, Row, Table, training_row
from repopt.reproduce.workshop import Workshop
from repopt.train.launch import Job
from repopt.train.recipe import Recipe, Rules

_SIZE = "b1"


@dataclass(frozen=True, kw_only=True)
class _Behaviour:
    """A row of the paper's table.

    Attributes:
        paper: its accuracy on ImageNet.
        source: of the constants, for a RepOptimizer.
        fields: of the recipe.
        lrs: learning rates to try; the recipe's alone unless given.
        inits: that a baseline is tried with.
    """

    paper: float
    source: Source | None = None
    rules: Rules = "both"
    fields: dict[str, Any] = field(default_factory=dict)
    lrs: tuple[float | None, ...] = (None,)
    inits: tuple[str | None, ...] = (None,)


_ADAM_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
_BEHAVIOURS = {
    "SGD": _Behaviour(paper=76.91, inits=("authors", "paper")),
    "RMSprop": _Behaviour(paper=76.72, fields={"optimizer": "RMSprop"}, lrs=(1e-4, 3e-4, 1e-3, 3e-3)),
    "Adam": _Behaviour(paper=76.14, fields={"optimizer": "Adam"}, lrs=_ADAM_RATES),
    "AdamW": _Behaviour(paper=75.03, fields={"optimizer": "AdamW", "weight_decay": 0.05}, lrs=_ADAM_RATES),
    "Adafactor": _Behaviour(paper=74.69, fields={"optimizer": "Adafactor"}, lrs=(1e-3, 3e-3, 1e-2, 3e-2)),
    "RepOptimizer": _Behaviour(paper=78.47, source="searched"),
    "RepOptimizer, initialization unchanged": _Behaviour(paper=77.42, source="searched", rules="iteration"),
    "RepOptimizer, gradients unmodified": _Behaviour(paper=77.07, source="searched", rules="initialization"),
    "RepOptimizer, all ones": _Behaviour(paper=77.59, source="ones"),
    "RepOptimizer, as the search starts": _Behaviour(paper=77.71, source="depth"),
    "RepOptimizer, mean over channels": _Behaviour(paper=77.40, source="mean"),
}
_BASELINE = "SGD"
_FULL = "RepOptimizer"


def _rows(scope: Scope) -> Iterator[Row]:
    for name, behaviour in _BEHAVIOURS.items():
        # a grid of learning rates is searched with one seed; the others show how much seeds differ
        seeds = scope.seeds[:1] if len(behaviour.lrs) > 1 else scope.seeds
        for seed in seeds:
            for lr in behaviour.lrs:
                for init in behaviour.inits:
                    yield _row(scope, name, behaviour, seed, lr, init)


def _row(scope: Scope, name: str, behaviour: _Behaviour, seed: int, lr: float | None, init: str | None) -> Row:
    model, source = scope.model(_SIZE), behaviour.source
    # a baseline without a choice of inits gets the one that is best for plain SGD, as `conventions` finds
    kernel = init or (Recipe.kernel if source else "paper")
    fields = {**behaviour.fields, "kernel": kernel, "rules": behaviour.rules} | ({} if lr is None else {"lr": lr})

    def job(workshop: Workshop) -> Job:
        scales = None if source is None else scales_from(source, scope, workshop, model)
        return training_job(scope, model, "repopt" if source else "sgd", seed, scales, **fields)

    key = {"optimizer": name, "model": model, "init": kernel, "rate": lr, "seed": seed}
    return training_row(key, job, minutes=0.35)


def _part(rows: Sequence[Record]) -> list[str]:
    full, baseline = matching(rows, optimizer=_FULL), _best(matching(rows, optimizer=_BASELINE))
    lines = [
        f"The paper: RepOpt-VGG-B1 on ImageNet. Ours: {rows[0]['model']} on Imagenette, {setting(rows)} This setting "
        "was "
        "taken because the methods differ in it by more than seeds do, within seconds of training. SGD has the better "
        "of two "
        "inits, and the adaptive optimizers, with He's, their best learning rate of one seed; all that were tried are "
        "in "
        "`results/table4.csv`.",
        "",
    ]
    cells = []
    for name, behaviour in _BEHAVIOURS.items():
        its = _best(matching(rows, optimizer=name))
        if its:
            chosen = f"{its[0]['init']}" + (f", lr {float(its[0]['rate']):g}" if its[0]["rate"] else "")
            cells.append(
                (
                    name,
                    chosen,
                    len(its),
                    spread(its),
                    "" if name == _FULL else difference(its, full),
                    "" if name == _BASELINE else difference(its, baseline),
                    f"{behaviour.paper:.2f}",
                    "" if name == _FULL else f"{behaviour.paper - _BEHAVIOURS[_FULL].paper:+.2f}",
                )
            )
    columns = {"optimizer": "<", "init": "<", "seeds": ">", "accuracy": ">", "to RepOptimizer": ">", "to SGD": ">"}
    lines += markdown({**columns, "paper": ">", "paper, to RepOptimizer": ">"}, cells)
    lines += ["", _order(rows)]
    return lines


def _best(rows: Sequence[Record]) -> list[Record]:
    """The rows of the init and learning rate with the highest mean."""
    found = groups((row for row in rows if row["val_accuracy"]), "init", "rate")
    return max(found.values(), key=mean, default=[])


def _order(rows: Sequence[Record]) -> str:
    """The order of the RepOptimizers, ours and the paper's."""
    found = {name: mean(matching(rows, optimizer=name)) for name, each in _BEHAVIOURS.items() if each.source}
    there = [name for name, value in found.items() if value == value]  # what was measured
    short = {name: name.removeprefix("RepOptimizer, ") for name in there}
    ours = sorted(there, key=lambda name: -found[name])
    papers = sorted(there, key=lambda name: -_BEHAVIOURS[name].paper)
    return (
        f"Best to worst here: {'; '.join(short[name] for name in ours)}. In the paper: "
        f"{'; '.join(short[name] for name in papers)}."
    )


TABLE = Table(
    name="table4",
    title="Table 4: optimizers and ablations",
    keys=("optimizer", "model", "init", "rate", "seed"),
    rows=_rows,
    part=_part,
)
