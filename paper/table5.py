"""Table 5: scales searched on several data sets, models trained on two of them."""

from paper.jobs import AGAIN, NOT_SEARCHED, SEARCHED_AGAIN, HyperSearch, Source, Training
from paper.tables import Table
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

TABLE = Table(
    title="Table 5: scales from other data",
    keys=("target", "source", "model", "seed"),
    trainings=[
        Training(model=size, key={"target": target, "source": source}, scales=_SOURCES[source], data=target)
        for (size, target), sources in _TRAINED.items()
        for source in sources
    ],
    view=View(
        by=("model", "target", "source"),
        order={"target": ("imagenette", "cifar100"), "source": list(_SOURCES)},
        columns=[
            *("model", text("target", "trained on"), text("source", "scales searched on"), SEEDS, accuracy()),
            *map(minus, ("cifar100", AGAIN, NOT_SEARCHED)),
        ],
    ),
)
