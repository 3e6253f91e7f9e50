"""Table 5: scales searched on several data sets, models trained on two of them."""

from collections.abc import Iterator

from paper.jobs import AGAIN, NOT_SEARCHED, SEARCHED_AGAIN, HyperSearch, Source, Training, training_row
from paper.scope import Scope
from paper.tables import Table, TableRow
from paper.view import SEEDS, View, accuracy, minus, text

_SOURCES: dict[str, Source | HyperSearch] = {
    **{data: HyperSearch(data=data) for data in ("cifar100", "imagenette", "digits")},
    AGAIN: SEARCHED_AGAIN,
    NOT_SEARCHED: "depth",
}
# {size and target: sources}; the paper has B1, and docs/results.md says why A0
_TRAINED = {
    ("a0", "imagenette"): list(_SOURCES),
    ("a0", "cifar100"): [source for source in _SOURCES if source != AGAIN],
    ("b0", "imagenette"): ["cifar100", "imagenette"],
}


def _rows(scope: Scope) -> Iterator[TableRow]:
    for seed in scope.seeds:
        for (size, target), sources in _TRAINED.items():
            for source in sources if size == "a0" or not scope.quick else ():
                training = Training(model=size, scales=_SOURCES[source], data=target)
                key = {"target": target, "source": source, "model": scope.model(size)}
                yield training_row(scope, key, training, seed, minutes=0.4)


TABLE = Table(
    name="table5",
    title="Table 5: scales from other data",
    keys=("target", "source", "model", "seed"),
    rows=_rows,
    view=View(
        by=("model", "target", "source"),
        order={"target": ("imagenette", "cifar100"), "source": list(_SOURCES)},
        columns=[
            *("model", text("target", "trained on"), text("source", "scales searched on"), SEEDS, accuracy()),
            *map(minus, ("cifar100", AGAIN, NOT_SEARCHED)),
        ],
    ),
)
