"""Tables 5 and 6 and appendix B's: scales from searches on other data, with other strides, or from another start.

What is trained with them stays the same. The usual search is also made again, and left out.
"""

from collections.abc import Mapping
from dataclasses import replace

from paper.jobs import AGAIN, NOT_SEARCHED, SEARCHED_AGAIN, Lines, Scope, Source, Training, hyper_search
from paper.tables import Table
from paper.view import SEEDS, accuracy, minus, number, papers, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.plans.scales import Scales

_DROPPED = "dropped_identities"  # that the model lacks, and a search with other strides has
_OTHERS: dict[str, Source | Training] = {AGAIN: SEARCHED_AGAIN, NOT_SEARCHED: "depth"}
_SOURCES = {**{data: hyper_search(data=data) for data in ("cifar100", "imagenette", "digits")}, **_OTHERS}
# {size and target: sources}; the paper has B1, and docs/results.md says why A0
_TRAINED = {
    ("a0", "imagenette"): list(_SOURCES),
    ("a0", "cifar100"): [source for source in _SOURCES if source != AGAIN],
    ("b0", "imagenette"): ["cifar100", "imagenette"],
}

TABLE5 = Table(
    title="Table 5: scales from other data",
    keys=("target", "source", "model", "seed"),
    trainings=[
        Training(model=size, key={"target": target, "source": source}, scales=_SOURCES[source], data=target)
        for (size, target), sources in _TRAINED.items()
        for source in sources
    ],
    by=("model", "target", "source"),
    order={"target": ("imagenette", "cifar100"), "source": list(_SOURCES)},
    columns=[
        *("model", text("target", "trained on"), text("source", "scales searched on"), SEEDS, accuracy()),
        *map(minus, ("cifar100", AGAIN, NOT_SEARCHED)),
    ],
)


def _with_search(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """The figures of a training, and of the search of its scales."""
    job, found = training.job(scope, seed, workshop), {}
    if isinstance(training.scales, Training) and isinstance(job.scales, Scales):
        search = replace(training.scales, model=job.model).run(scope, seed, workshop)
        searched, fitted = (
            sum(map(len, scales.values())) for scales in (Scales.load(search / "scales.safetensors"), job.scales)
        )
        found = {"search_accuracy": figures_of(search)["val_accuracy"], _DROPPED: searched - fitted}
    return [{**figures_of(workshop.run(job)), **found}]


# {kind of search: (the search, the paper's accuracy of it, and of the target on ImageNet)}
_Searches = Mapping[str, tuple[Training, float, float]]
STRIDES: _Searches = {
    "2 2 2 2 2": (hyper_search(), 54.53, 78.47),
    "2 2 1 2 1": (hyper_search(options={"strides": (2, 2, 1, 2, 1)}), 70.66, 77.81),
    "2 1 2 1 1": (hyper_search(options={"strides": (2, 1, 2, 1, 1)}), 74.37, 77.88),
}
STARTS: _Searches = {
    "all 1": (hyper_search(fields={"start": 1.0}), 47.70, 77.59),
    "sqrt(2/l)": (hyper_search(), 54.53, 78.47),
}


def _table(title: str, key: str, heading: str, searches: _Searches, *more: str) -> Table:
    """Searches of A0, told apart by a column: the accuracy of each, and of what is trained with its scales."""
    usual = next(kind for kind, (search, *_) in searches.items() if search == hyper_search())
    scales = {**{kind: search for kind, (search, *_) in searches.items()}, **_OTHERS}
    return Table(
        title=title,
        keys=(key, "model", "seed"),
        trainings=[
            Training(model="a0", key={key: kind}, scales=source, measure=_with_search)
            for kind, source in scales.items()
        ],
        figures=("search_accuracy", *more, *FIGURES),
        by=(key,),
        order={key: list(scales)},
        columns=[
            *(text(key, heading), number("search_accuracy", "search accuracy", "{:.2f}"), SEEDS, accuracy()),
            *map(minus, (usual, AGAIN, NOT_SEARCHED)),
            papers("paper, search", searches, key, form="{0[1]:.2f}"),
            papers("paper, ImageNet", searches, key, form="{0[2]:.2f}"),
        ],
    )


TABLE6 = _table("Table 6: scales from other strides", "strides", "strides of the search", STRIDES, _DROPPED)
TABLE_B = _table("Appendix B: where searched scales start", "scales_start", "scales start at", STARTS)
