"""Studies of our own: the scales that ship, is the search any good, does A0 lose to RepVGG, and which conventions?

Each trains a model in several ways: with scales from elsewhere, or with other fields of the recipe.
"""

from itertools import product
from typing import Any, get_args

from paper.jobs import AGAIN, SEARCHED_AGAIN, Training, hyper_search, planned, search_recipe_of
from paper.tables import Table
from paper.view import SEEDS, accuracy, minus, text
from repopt.algebra.csla import Convention, IdentityStart
from repopt.plans.scales import Counting, Scales
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

VGGS = ("nano", "a0", "a1", "a2", "b0", "b1", "b2", "b3", "l1", "l2")
AUTHORS_VGGS = ("b1", "b2", "l1", "l2")  # whose scales they released
_Ways = dict[str, dict[str, Any]]  # {name: what it changes of a training}
_REPVGG: dict[str, Any] = {"method": "repvgg"}
_OURS: dict[str, Any] = {"scales": "searched"}
# searches that differ in what their names say
_SEARCHES: _Ways = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "clipped": {"label_smoothing": 0.1, "warmup_epochs": 10, "clip": 5.0},  # as the authors' other configuration
    "he": {"kernel": "paper"},  # whatever is trained
}


def _searched(name: str, **fields: Any) -> dict[str, Any]:
    return {"scales": hyper_search(fields={**fields, **_SEARCHES[name]})}


_CONSTANTS: _Ways = {
    "searched": _OURS,
    AGAIN: {"scales": SEARCHED_AGAIN},
    **{source: {"scales": source} for source in ("authors", "ones", "depth", "mean")},
    "searched, clipped": _searched("clipped"),
    "searched, He": _searched("he"),
    "RepVGG": _REPVGG,
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
_VARIANTS: _Ways = {
    "RepVGG": _REPVGG,
    **{f"RepVGG, {name}": {**_REPVGG, "fields": fields} for name, fields in _FIELDS.items() if name != "clipped to 5"},
    "searched": _OURS,
    **{name: {**_OURS, "fields": fields} for name, fields in _FIELDS.items()},
    "no frozen taps": {**_OURS, "change": lambda scales, _: floored(scales, 0.3)},
    "half-way to the search's start": {
        **_OURS,
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
