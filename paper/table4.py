"""Table 4: optimizers without knowledge of the model, both rules and each alone, and other constants."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from paper.claims import Claim, claims_to_searches
from paper.jobs import AGAIN, Source, scales_from, training_job
from paper.scope import Scope
from paper.searches import gaps_to, later_seeds, whose
from paper.summaries import INITS, best, difference, groups, markdown, matching, setting, spread, told_apart
from paper.tables import Record, Row, Table, training_row
from paper.workshop import Workshop
from repopt.algebra.csla import Convention
from repopt.train.methods import Method
from repopt.train.recipe import Recipe, Rules
from repopt.train.training import Job

_SIZES = ("b1", "a0")  # the paper has B1; for A0 see `searches`


@dataclass(frozen=True, kw_only=True)
class _Behaviour:
    """A row of the paper's table, or one of ours beside it.

    Attributes:
        paper: its accuracy on ImageNet; None for a row that is ours alone.
        method: how the model is trained where there are no constants.
        source: of the constants, for a RepOptimizer.
        fields: of the recipe.
        lrs: learning rates to try; the recipe's alone unless given.
        inits: that a baseline is tried with.
    """

    paper: float | None = None
    method: Method = "sgd"
    source: Source | None = None
    rules: Rules = "both"
    fields: dict[str, Any] = field(default_factory=dict)
    lrs: tuple[float | None, ...] = (None,)
    inits: tuple[Convention | None, ...] = (None,)

    @property
    def adaptive(self) -> bool:
        return "optimizer" in self.fields

    @property
    def tried(self) -> list[tuple[float | None, Convention | None]]:
        """Learning rates and inits; an adaptive optimizer, whose grid is wide, has torch's at the two highest alone."""
        pairs = itertools.product(self.lrs, self.inits)
        return [(lr, init) for lr, init in pairs if not (self.adaptive and init == "authors" and lr in self.lrs[:-2])]


_INITS: tuple[Convention | None, ...] = get_args(Convention)
_BASELINE, _REAL, _FULL = "SGD", "SGD, RepVGG", "RepOptimizer"
_SECOND = f"{_FULL}, {AGAIN}"
_PAPERS_BEST = 78.47  # of the whole method
_ADAM_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
_BEHAVIOURS = {
    _BASELINE: _Behaviour(paper=76.91, lrs=(None, 0.05, 0.2), inits=_INITS),
    "RMSprop": _Behaviour(paper=76.72, fields={"optimizer": "RMSprop"}, lrs=(1e-4, 3e-4, 1e-3, 3e-3), inits=_INITS),
    "Adam": _Behaviour(paper=76.14, fields={"optimizer": "Adam"}, lrs=_ADAM_RATES, inits=_INITS),
    "AdamW": _Behaviour(
        paper=75.03, fields={"optimizer": "AdamW", "weight_decay": 0.05}, lrs=_ADAM_RATES, inits=_INITS
    ),
    "Adafactor": _Behaviour(
        paper=74.69, fields={"optimizer": "Adafactor", "weight_decay": 0.05}, lrs=(1e-3, 3e-3, 1e-2, 3e-2), inits=_INITS
    ),
    _REAL: _Behaviour(paper=78.41, method="repvgg", lrs=(None, 0.05, 0.2)),  # the paper's Table 2 has it
    _FULL: _Behaviour(paper=_PAPERS_BEST, source="searched"),
    _SECOND: _Behaviour(source=AGAIN),
    "RepOptimizer, initialization unchanged": _Behaviour(
        paper=77.42, source="searched", rules="iteration", inits=_INITS
    ),
    "RepOptimizer, gradients unmodified": _Behaviour(paper=77.07, source="searched", rules="initialization"),
    "RepOptimizer, all ones": _Behaviour(paper=77.59, source="ones"),
    "RepOptimizer, as the search starts": _Behaviour(paper=77.71, source="depth"),
    "RepOptimizer, mean over channels": _Behaviour(paper=77.40, source="mean"),
}


def _rows(scope: Scope) -> Iterator[Row]:
    for size in _SIZES[:1] if scope.quick else _SIZES:
        for name, behaviour in _BEHAVIOURS.items():
            if behaviour.adaptive and size != _SIZES[0]:
                continue
            # the adaptive optimizers' grids are searched with one model and seed; the others show how much seeds differ
            for seed in scope.seeds[:1] if behaviour.adaptive else scope.seeds:
                for lr, init in behaviour.tried:
                    yield _row(scope, scope.model(size), name, seed, lr, init)


def _row(scope: Scope, model: str, name: str, seed: int, lr: float | None, init: Convention | None) -> Row:
    behaviour = _BEHAVIOURS[name]
    source, kernel = behaviour.source, init or Recipe.kernel
    fields = {**behaviour.fields, "kernel": kernel, "rules": behaviour.rules} | ({} if lr is None else {"lr": lr})

    def job(workshop: Workshop) -> Job:
        scales = None if source is None else scales_from(source, scope, workshop, model)
        return training_job(scope, model, "repopt" if source else behaviour.method, seed, scales, **fields)

    key = {"optimizer": name, "model": model, "init": kernel, "rate": lr, "seed": seed}
    return training_row(key, job, minutes=0.2, searches={f"{AGAIN} {model}": 2.5} if source == AGAIN else {})


def _part(rows: Sequence[Record]) -> list[str]:
    models = groups(rows, "model")
    lines = [
        f"The paper: RepOpt-VGG-B1 on ImageNet. Ours: {' and '.join(model for (model,) in models)} on Imagenette, "
        f"{setting(rows)} This setting was taken because the methods differ in it by more than seeds do, within "
        "seconds of training. A row is the best of what was tried, chosen on the test images among what has three "
        f"seeds, or most. `SGD, RepVGG` has real branches. `{AGAIN}` has scales of a second search, like the first but "
        "for its seed. Adaptive optimizers have one seed, torch's own betas and momentum, weight decay 0.05 where it "
        "is decoupled and the recipe's elsewhere, and torch's init at their two highest learning rates alone. All that "
        "was tried is in `results/table4.csv`.",
    ]
    for (model,), its in models.items():
        lines += ["", f"{model}:", "", *_model_part(its)]
    return lines


def _model_part(rows: Sequence[Record]) -> list[str]:
    chosen = {name: at_its_best(rows, name) for name in _BEHAVIOURS}
    full, second, baseline = chosen[_FULL], chosen[_SECOND], chosen[_BASELINE]
    cells = []
    for name, its in chosen.items():
        behaviour = _BEHAVIOURS[name]
        if its:
            cells.append(
                (
                    name,
                    _way(its[0]),
                    _tried(matching(rows, optimizer=name), its[0]),
                    len(its),
                    spread(its),
                    *gaps_to(its, full),
                    *([None] if _same_scales(name) else gaps_to(its, second)),
                    "" if name == _BASELINE else difference(its, baseline),
                    "" if behaviour.paper is None else f"{behaviour.paper:.2f}",
                    "" if behaviour.paper is None or name == _FULL else f"{_papers_loss(behaviour.paper):+.2f}",
                )
            )
    columns = {"optimizer": "<", "init": "<", "tried": "<", "seeds": ">", "accuracy": ">", "to RepOptimizer": ">"}
    columns[f"to {AGAIN}"] = ">"
    lines = markdown({**columns, "to SGD": ">", "paper": ">", "paper, to RepOptimizer": ">"}, cells)
    told = _told(rows)
    return [*lines, "", told] if told else lines


def _told(rows: Sequence[Record]) -> str:
    """Which ablations are behind the whole method, of seeds that did not choose the model, and the paper's order."""
    later = later_seeds(rows)
    others = {
        _short(name): at_its_best(later, name)
        for name, behaviour in _BEHAVIOURS.items()
        if behaviour.source and name != _FULL
    }
    told = [told_apart(others, at_its_best(later, _FULL), "the whole method"), _papers_order(others)]
    found = [sentence for sentence in told if sentence]
    return " ".join([f"{whose(later)}:", *found] if found and len(later) < len(rows) else found)


def at_its_best(rows: Sequence[Record], name: str) -> Sequence[Record]:
    """An optimizer at its best init and learning rate."""
    return best(groups(matching(rows, optimizer=name), "init", "rate").values())


def _way(row: Record) -> str:
    return INITS[row["init"]] + (f", lr {float(row['rate']):g}" if row["rate"] else "")


def _tried(rows: Sequence[Record], chosen: Record) -> str:
    """All inits and learning rates of a row, and whether the best one lies at their edge."""
    inits = [INITS[init] for init in dict.fromkeys(row["init"] for row in rows)]
    rates, own = _rates(rows), _rates(matching(rows, init=chosen["init"]))
    if len(rows) < 2 or not rates:
        return ""
    which = f" of {INITS[chosen['init']]}" if len(inits) > 1 else ""
    edges = {own[0]: f", the lowest{which} is best", own[-1]: f", the highest{which} is best"} if len(own) > 1 else {}
    edge = edges.get(float(chosen["lr"]), "")
    return f"{' and '.join(inits)}; lr {', '.join(f'{rate:g}' for rate in rates)}{edge}"


def _rates(rows: Sequence[Record]) -> list[float]:
    found = (row["lr"] or row["rate"] for row in rows)  # a row that diverged has no lr
    return sorted({float(rate) for rate in found if rate})


def _short(name: str) -> str:
    return name.removeprefix(f"{_FULL}, ")


def _papers_order(found: Mapping[str, Sequence[Record]]) -> str | None:
    """The paper's order of what was measured."""
    short = {_short(name): each.paper for name, each in _BEHAVIOURS.items() if each.paper is not None}
    order = sorted((name for name, its in found.items() if its and name in short), key=lambda name: -short[name])
    return f"The paper's order, best to worst: the whole method, {', '.join(order)}." if order else None


# {a row of the table: what the paper says of it}
_CLAIMS = {
    _BASELINE: "Table 4: plain SGD is behind a RepOptimizer",
    _REAL: "Table 2: RepVGG does as well (ours: at its best learning rate of those tried, RepOpt at the recipe's)",
    "RepOptimizer, initialization unchanged": "Table 4: without the Rule of Initialization it loses",
    "RepOptimizer, gradients unmodified": "Table 4: without the Rule of Iteration it loses",
    "RepOptimizer, all ones": "Table 4: with all-ones constants it loses",
    "RepOptimizer, as the search starts": "Table 4: with the constants that the search starts from it loses",
    "RepOptimizer, mean over channels": "Table 4: with constants averaged over channels it loses",
}


def _claims(rows: Sequence[Record]) -> list[Claim]:
    found = []
    for (model,), its in groups(rows, "model").items():
        its = later_seeds(its)
        full, second = (at_its_best(its, name) for name in (_FULL, _SECOND))
        for name, text in _CLAIMS.items():
            paper = _BEHAVIOURS[name].paper
            if paper is None or (name == _REAL and model != rows[0]["model"]):  # A0's rates are compared in `a0`
                continue
            searches = [full] if _same_scales(name) else [full, second]
            found += claims_to_searches(
                text, whose(its), _papers_loss(paper), at_its_best(its, name), *searches, alike=name == _REAL
            )
    return found


def _same_scales(name: str) -> bool:
    """Whether a row has the first search's scales, so that another search's are no match for it."""
    return _BEHAVIOURS[name].source in ("searched", "mean")


def _papers_loss(accuracy: float) -> float:
    return accuracy - _PAPERS_BEST


def _verdict(rows: Sequence[Record]) -> str | None:
    """Of the first model."""
    rows = matching(rows, model=rows[0]["model"])
    full, baseline, real = (at_its_best(rows, name) for name in (_FULL, _BASELINE, _REAL))
    gap, to_real = difference(full, baseline), difference(full, real)
    if gap is None:
        return None
    parts = {"with all-ones constants": "all ones", "with gradients unmodified": "gradients unmodified"}
    parts["with the initialization unchanged"] = "initialization unchanged"
    gaps = {words: difference(at_its_best(rows, f"{_FULL}, {name}"), full) for words, name in parts.items()}
    told = [f"{words} {each}" for words, each in gaps.items() if each]
    alone = difference(at_its_best(rows, f"{_FULL}, gradients unmodified"), baseline)
    return (
        f"RepOptimizer against plain SGD at its best, {rows[0]['model']}: {gap} points"
        + (f"; its Rule of Initialization alone, {alone}" if alone else "")
        + (f". Against RepVGG at its best: {to_real}" if to_real else "")
        + (f". Against the whole method: {', '.join(told)}." if told else ".")
    )


TABLE = Table(
    name="table4",
    title="Table 4: optimizers and ablations",
    keys=("optimizer", "model", "init", "rate", "seed"),
    rows=_rows,
    part=_part,
    verdict=_verdict,
    claims=_claims,
)
