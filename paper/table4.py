"""Table 4 and appendix D: optimizers without knowledge of the model, ablations of ours, and GhostNet."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

from paper.jobs import AGAIN, SEARCHED_AGAIN, Training
from paper.tables import Table
from paper.view import INITS, SEEDS, Column, Line, accuracy, groups, minus, number, papers, text
from repopt.algebra.csla import Convention
from repopt.train.recipe import Recipe, ghost

_INITS: tuple[Convention, ...] = get_args(Convention)
_SGD_RATES = (None, 0.05, 0.2)  # None is the recipe's
_DECAY = {"weight_decay": 0.05}
# {line of the paper's table, or one of ours beside it: (accuracy on ImageNet, how it is trained)}
_OPTIMIZERS: dict[str, tuple[float | None, dict[str, Any]]] = {
    "SGD": (76.91, {"rates": _SGD_RATES, "inits": _INITS}),
    "RMSprop": (76.72, {"rates": (1e-4, 3e-4, 1e-3, 3e-3), "fields": {"optimizer": "RMSprop"}}),
    "Adam": (76.14, {"rates": (3e-4, 1e-3, 3e-3, 1e-2), "fields": {"optimizer": "Adam"}}),
    "AdamW": (75.03, {"rates": (3e-4, 1e-3, 3e-3, 1e-2), "fields": {"optimizer": "AdamW", **_DECAY}}),
    "Adafactor": (74.69, {"rates": (1e-3, 3e-3, 1e-2, 3e-2), "fields": {"optimizer": "Adafactor", **_DECAY}}),
    "SGD, RepVGG": (78.41, {"rates": _SGD_RATES, "method": "repvgg"}),  # the paper's Table 2 has it
    "RepOptimizer": (78.47, {"scales": "searched"}),
    f"RepOptimizer, {AGAIN}": (None, {"scales": SEARCHED_AGAIN}),
    "RepOptimizer, initialization unchanged": (
        77.42,
        {"scales": "searched", "inits": _INITS, "fields": {"rules": "iteration"}},
    ),
    "RepOptimizer, gradients unmodified": (77.07, {"scales": "searched", "fields": {"rules": "initialization"}}),
    "RepOptimizer, all ones": (77.59, {"scales": "ones"}),
    "RepOptimizer, as the search starts": (77.71, {"scales": "depth"}),
    "RepOptimizer, mean over channels": (77.40, {"scales": "mean"}),
}
PAPER = {name: figure for name, (figure, _) in _OPTIMIZERS.items() if figure is not None}
PAPER_GAPS = {name: figure - PAPER["RepOptimizer"] for name, figure in PAPER.items() if name != "RepOptimizer"}


def _trainings(
    size: str, name: str, rates: Sequence[float | None] = (None,), inits: Sequence[str] = (Recipe.kernel,), **how: Any
) -> Iterator[Training]:
    """All learning rates with all inits; adaptive optimizers, whose grids are wide, have B1, one seed and fewer."""
    fields = how.pop("fields", {})
    adaptive = "optimizer" in fields
    for lr, init in product(rates, _INITS if adaptive else inits):
        if not adaptive or (size == "b1" and (init == "paper" or lr in rates[-2:])):
            key = {"optimizer": name, "init": init, "rate": lr}
            tried = {**fields, "kernel": init, **({} if lr is None else {"lr": lr})}
            yield Training(model=size, key=key, fields=tried, one_seed=adaptive, **how)


def _tried(line: Line) -> str:
    """The learning rates that were tried, by init, and whether the best one lies at the edge."""
    listed = []
    for (init,), rows in groups(line.tried, "init").items():
        rates = sorted({float(rate) for row in rows if (rate := row["lr"] or row["rate"])})
        edges = {rates[-1]: ", the highest is best", rates[0]: ", the lowest is best"}
        edge = edges.get(float(line["lr"]), "") if init == line["init"] and len(rates) > 1 else ""
        listed.append(f"{INITS[init]}: {', '.join(f'{rate:g}' for rate in rates)}{edge}")
    return "; ".join(listed)


TABLE4 = Table(
    title="Table 4: optimizers and ablations",
    keys=("optimizer", "model", "init", "rate", "seed"),
    # B1, which the paper has, and A0, for which docs/paper-tables.md has the reason
    trainings=[
        training
        for size, (name, (_, how)) in product(("b1", "a0"), _OPTIMIZERS.items())
        for training in _trainings(size, name, **how)
    ],
    by=("model", "optimizer"),
    best=("init", "rate"),
    order={"optimizer": list(_OPTIMIZERS)},
    columns=[
        *("model", "optimizer", "init", number("lr", form="{:g}"), Column("tried, lr by init", _tried, False)),
        *(SEEDS, accuracy(), minus("RepOptimizer"), minus(f"RepOptimizer, {AGAIN}"), minus("SGD")),
        papers("paper", PAPER, "optimizer", form="{:.2f}"),
        papers("paper, minus RepOptimizer", PAPER_GAPS, "optimizer", form="{:+.2f}"),
    ],
)

_NETS = {"repvgg": "RepGhostNet, SGD", "repopt": "RepOpt-GhostNet, RepOptimizer", "sgd": "RepOpt-GhostNet, SGD"}
# a third of the epochs, as the VGGs have here, at Imagenette's size and a batch that its images fill 36 times
_GHOST = replace(ghost(), epochs=100, size=96, resized_crop=(0.25, 1.0), batch_size=256, eval_every=100)


def _ghostnet(method: Any, scales: Any = None, init: str = "authors") -> Training:
    how: dict[str, Any] = {"method": method, "scales": scales, "recipe": _GHOST, "fields": {"kernel": init}}
    return Training(model="repopt_ghostnet_050", key={"method": method, "scales": scales, "init": init}, **how)


TABLE_D = Table(
    title="Appendix D: GhostNet",
    keys=("method", "scales", "model", "init", "seed"),
    trainings=[
        _ghostnet("repvgg"),
        *(_ghostnet("repopt", scales) for scales in ("searched", "authors")),
        *(_ghostnet("sgd", init=init) for init in _INITS),  # torch's, as the branches have, and He's
    ],
    by=("method", "scales"),
    best=("init",),
    order={"method": list(_NETS), "scales": ("", "searched", "authors")},
    columns=[
        *(text("method", "model, optimizer", _NETS), "scales", "init", SEEDS, accuracy()),
        *(minus("RepGhostNet", {"method": "repvgg"}), minus("plain SGD", {"method": "sgd"})),
        papers("paper", {("repvgg", ""): 66.49, ("repopt", "authors"): 66.51}, "method", "scales"),
    ],
)
