"""Scales from elsewhere: Tables 5 and 6 and appendix B's, and studies of our own.

A model is trained in several ways: with scales from other searches or none, or with other fields of the recipe. The
usual search is also made again, and left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, get_args

from paper.jobs import AGAIN, SEARCHED_AGAIN, Lines, Scope, Training, hyper_search, planned, search_recipe_of
from paper.tables import Table
from paper.view import SEEDS, accuracy, minus, number, papers, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.algebra.csla import Convention, IdentityStart
from repopt.plans.scales import Counting, Scales
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_Ways = Mapping[str, dict[str, Any]]  # {name: what it changes of a training}
VGGS = ("nano", "a0", "a1", "a2", "b0", "b1", "b2", "b3", "l1", "l2")
AUTHORS_VGGS = ("b1", "b2", "l1", "l2")  # whose scales they released
_NOT_SEARCHED = "not searched"  # the constants that a search starts from
_OTHERS: _Ways = {AGAIN: {"scales": SEARCHED_AGAIN}, _NOT_SEARCHED: {"scales": "depth"}}

_SOURCES = {**{data: {"scales": hyper_search(data=data)} for data in ("cifar100", "imagenette", "digits")}, **_OTHERS}
# {size and target: sources}; the paper has B1, and docs/paper-tables.md says why A0
_TRAINED = {
    ("a0", "imagenette"): list(_SOURCES),
    ("a0", "cifar100"): [source for source in _SOURCES if source != AGAIN],
    ("b0", "imagenette"): ["cifar100", "imagenette"],
}

TABLE5 = Table(
    title="Table 5: scales from other data",
    keys=("target", "source", "model", "seed"),
    trainings=[
        Training(model=size, key={"target": target, "source": source}, data=target, **_SOURCES[source])
        for (size, target), sources in _TRAINED.items()
        for source in sources
    ],
    by=("model", "target", "source"),
    order={"source": list(_SOURCES)},
    columns=[
        *("model", text("target", "trained on"), text("source", "scales searched on"), SEEDS, accuracy()),
        *map(minus, ("cifar100", AGAIN, _NOT_SEARCHED)),
    ],
)


def _with_search(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """The figures of a training, and of the search of its scales."""
    job, found = training.job(scope, seed, workshop), {}
    if isinstance(training.scales, Training) and isinstance(job.scales, Scales):
        search = replace(training.scales, model=job.model).run(scope, seed, workshop)
        scales = Scales.load(search / "scales.safetensors")
        dropped = sum(len(scales[operator]) - len(fitting) for operator, fitting in job.scales.items())
        found = {"search_accuracy": figures_of(search)["val_accuracy"], "dropped_identities": dropped}
    return [{**figures_of(workshop.run(job)), **found}]


# {kind of search: (what it changes, the paper's accuracy of it, and of the target on ImageNet)}
_Searches = Mapping[str, tuple[dict[str, Any], float, float]]
STRIDES: _Searches = {
    "2 2 2 2 2": ({}, 54.53, 78.47),
    "2 2 1 2 1": ({"options": {"strides": (2, 2, 1, 2, 1)}}, 70.66, 77.81),
    "2 1 2 1 1": ({"options": {"strides": (2, 1, 2, 1, 1)}}, 74.37, 77.88),
}
STARTS: _Searches = {"all 1": ({"fields": {"start": 1.0}}, 47.70, 77.59), "sqrt(2/l)": ({}, 54.53, 78.47)}


def _table(title: str, key: str, heading: str, searches: _Searches, *more: str) -> Table:
    """Searches of A0, told apart by a column: the accuracy of each, and of what is trained with its scales."""
    usual = next(kind for kind, (changes, *_) in searches.items() if not changes)
    ways = {**{kind: {"scales": hyper_search(**changes)} for kind, (changes, *_) in searches.items()}, **_OTHERS}
    return Table(
        title=title,
        keys=(key, "model", "seed"),
        trainings=[Training(model="a0", key={key: kind}, measure=_with_search, **how) for kind, how in ways.items()],
        figures=("search_accuracy", *more, *FIGURES),
        by=(key,),
        order={key: list(ways)},
        columns=[
            *(text(key, heading), number("search_accuracy", "search accuracy", "{:.2f}"), SEEDS, accuracy()),
            *map(minus, (usual, AGAIN, _NOT_SEARCHED)),
            papers("paper, search", searches, key, form="{0[1]:.2f}"),
            papers("paper, ImageNet", searches, key, form="{0[2]:.2f}"),
        ],
    )


TABLE6 = _table("Table 6: scales from other strides", "strides", "strides of the search", STRIDES, "dropped_identities")
TABLE_B = _table("Appendix B: where searched scales start", "scales_start", "scales start at", STARTS)

# searches by recipes that differ in what their names say
_SEARCHES: _Ways = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "clipped": {"label_smoothing": 0.1, "warmup_epochs": 10, "clip": 5.0},  # as the authors' other configuration
    "he": {"kernel": "paper"},  # whatever is trained
}


def _searched(name: str, **fields: Any) -> dict[str, Any]:
    return {"scales": hyper_search(fields={**fields, **_SEARCHES[name]})}


_CONSTANTS: _Ways = {
    **{"searched": {"scales": "searched"}, AGAIN: _OTHERS[AGAIN]},
    **{source: {"scales": source} for source in ("authors", "ones", "depth", "mean")},
    **{"searched, clipped": _searched("clipped"), "searched, He": _searched("he"), "RepVGG": {"method": "repvgg"}},
}

CONSTANTS = Table(
    title="Is the search any good?",
    keys=("model", "constants", "seed"),
    trainings=[
        Training(model=size, key={"constants": name}, **changes)
        for size, (name, changes) in product(("b1", "a0"), _CONSTANTS.items())
        if name != "authors" or size in AUTHORS_VGGS
    ],
    by=("model", "constants"),
    order={"constants": list(_CONSTANTS)},
    columns=["model", "constants", SEEDS, accuracy(), minus("searched"), minus(AGAIN)],
)


def blended(scales: Scales, other: Scales, share: float) -> Scales:
    """Scales a share of the way from one set to another; identities, which the other lacks, stay."""
    found = {
        operator: {branch: scale.lerp(other[operator].get(branch, scale), share) for branch, scale in branches.items()}
        for operator, branches in scales.items()
    }
    return Scales(found, scales.metadata)


def floored(scales: Scales, share: float) -> Scales:
    """Scales of which none is smaller, sign aside, than a share of its operator's mean: no tap is nearly frozen."""
    found = {operator: dict(branches) for operator, branches in scales.items()}
    for branches in found.values():
        for branch in branches.keys() - {"identity"}:
            size = branches[branch].abs()
            branches[branch] = size.clamp(min=share * size.mean()).copysign(branches[branch])
    return Scales(found, scales.metadata)


_FIELDS: _Ways = {
    "twice the learning rate": {"lr": 0.2},
    "half the learning rate": {"lr": 0.05},
    "clipped to 1": {"clip": 1.0},
    "clipped to 5": {"clip": 5.0},  # of RepOpt alone
    "five times the weight decay": {"weight_decay": 2e-4},
}
_REPVGG = {"RepVGG": {}, **{f"RepVGG, {name}": fields for name, fields in _FIELDS.items() if name != "clipped to 5"}}
_VARIANTS: _Ways = {
    **{name: {"method": "repvgg", "fields": fields} for name, fields in _REPVGG.items()},
    **{name: {"method": "repopt", "fields": fields} for name, fields in {"searched": {}, **_FIELDS}.items()},
    "no frozen taps": {"method": "repopt", "change": lambda scales, _: floored(scales, 0.3)},
    "half-way to the search's start": {
        "method": "repopt",
        "change": lambda scales, model: blended(scales, Scales.depth_init(planned(model)), 0.5),
    },
    "mean over channels": {"scales": "mean"},
    "searched with smoothing": _searched("smoothed"),
    "searched with He's kernels": _searched("he"),
}

# a change is looked for on Imagenette; on CIFAR-100 it has to help without having been chosen there
A0 = Table(
    title="Does A0 lose to RepVGG?",
    keys=("data", "way", "model", "seed"),
    trainings=[
        Training(model="a0", key={"data": data, "way": name}, data=data, **changes)
        for data, (name, changes) in product(("imagenette", "cifar100"), _VARIANTS.items())
    ],
    by=("data", "way"),
    order={"way": list(_VARIANTS)},
    columns=["data", text("way", "variant"), SEEDS, accuracy(), minus("RepVGG"), minus("searched")],
)

_INITS = get_args(Convention)
_BASELINES: tuple[Method, ...] = ("sgd", "repvgg")
_DEFAULT = {"init": Recipe.kernel, "starts": Recipe.identity, "counting": str(Recipe.start), "search": "plain"}


def _conventions(**chosen: str) -> Training:
    key = {"method": "repopt", **_DEFAULT, **chosen}
    scales = _searched(key["search"], start=key["counting"], kernel=key["init"])
    return Training(model="b0", key=key, fields={"kernel": key["init"], "identity": key["starts"]}, **scales)


# where the paper and its authors' code disagree, each choice is trained
CONVENTIONS = Table(
    title="Which conventions?",
    keys=("method", "model", *_DEFAULT, "seed"),
    trainings=[
        *(
            Training(model="b0", key={"method": method, "init": init}, method=method, fields={"kernel": init})
            for init, method in product(_INITS, _BASELINES)
        ),
        *(
            _conventions(init=init, starts=starts, counting=counting)
            for init, counting, starts in product(_INITS, get_args(Counting), get_args(IdentityStart))
        ),
        *(_conventions(search=other) for other in ("smoothed", "clipped", "he")),
    ],
    by=("method", *_DEFAULT),
    order={"method": (*_BASELINES, "repopt")},
    best_first=True,
    columns=[
        *("method", "init", text("starts", "identity"), text("counting", "depth"), "search", SEEDS, accuracy()),
        minus("the default RepOpt", {"method": "repopt", **_DEFAULT}),
    ],
)

_GHOSTNETS = ("repopt_ghostnet_050", "repopt_ghostnet_100")

# a search on CIFAR-100 for every model, each family by its own recipe
ZOO = Table(
    title="Searched scales",
    keys=("model", "recipe", "seed"),
    trainings=[hyper_search(model=name, key={"recipe": search_recipe_of(name)}) for name in (*VGGS, *_GHOSTNETS)],
    order={"model": [*(f"repopt_vgg_{size}" for size in VGGS), *_GHOSTNETS]},
    columns=["model", "recipe", "seed", accuracy("search accuracy"), "precision", "hardware", "date"],
)
