"""What the method is worth, and where: ways to train a plain network, each at its own best learning rate.

A learning rate is chosen on seed 0, and what is reported is measured on the others, where there are any.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from paper.jobs import Training
from paper.tables import Table
from paper.view import SEEDS, accuracy, minus, number, text
from repopt.plans.scales import Scales
from repopt.train.recipe import Recipe

_Ways = Mapping[str, dict[str, Any]]  # {name: what it changes of a training}
RATES = (0.1, 0.2)
_LOWER = 0.05  # tried where 0.1 is the better of two for most ways
_HIGHER = 0.4  # tried where 0.2 is


def stage_means(scales: Scales, _: str = "") -> Scales:
    """Scales averaged over each stage: a number for each kind of branch."""
    stages: dict[tuple[str, str], list[float]] = {}
    for operator, branches in scales.items():
        for branch, scale in branches.items():
            stages.setdefault((operator.partition(".")[0], branch), []).extend(scale.flatten().tolist())
    means = {key: sum(found) / len(found) for key, found in stages.items()}
    found = {
        operator: {
            branch: scale.new_full(scale.shape, means[operator.partition(".")[0], branch])
            for branch, scale in branches.items()
        }
        for operator, branches in scales.items()
    }
    return Scales(found, scales.metadata)


def _learned(share: float = 0.3, *, scale_lr: float = 10.0, **fields: Any) -> dict[str, Any]:
    """Scales that are learned on the way, as `--scales learn` does it by default."""
    return {"scales": "learn", "fields": {"freeze_at": share, "scale_lr": scale_lr, **fields}}


_learned_slowly = partial(_learned, scale_lr=1.0)
_ALONE = {"rules": "initialization"}
LEARNED, TENTH = "RepOpt, learned", "RepOpt, learned, frozen at 10%"
WAYS: _Ways = {
    "plain SGD": {"method": "sgd", "fields": {"kernel": "paper"}},  # He's init, which is better for it
    "Dirac": {"method": "dirac"},
    "initialization alone": {"scales": "searched", "fields": _ALONE},
    "RepOpt, searched": {"scales": "searched"},
    "RepOpt, stage means": {"scales": "searched", "change": stage_means},
    "RepOpt, depth": {"scales": "depth"},
    LEARNED: _learned(),
    TENTH: _learned_slowly(0.1),
    "RepVGG": {"method": "repvgg"},
    "QARepVGG": {"method": "qarepvgg"},
}
_ONE_RUN: _Ways = {  # other than those
    "frozen at 30%": _learned_slowly(0.3),
    "never frozen": _learned_slowly(1.0),
    "frozen at 10%, scales ten times as fast": _learned(0.1),
    "never frozen, scales ten times as fast": _learned(1.0),
}


def trainings(ways: _Ways, how: Mapping[str, Any], rates: Sequence[float] = RATES, **key: Any) -> Iterator[Training]:
    """Every way at every learning rate; `key` has the other columns that tell its rows apart."""
    for (name, way), rate in product(ways.items(), rates):
        fields = {**how.get("fields", {}), **way.get("fields", {}), "lr": rate}
        yield Training(key={**key, "way": name, "rate": rate}, **{**how, **way, "fields": fields})


def mini64(epochs: int, size: str = "b0", limit: int | None = None, **fields: Any) -> dict[str, Any]:
    """A training on mini-ImageNet, evaluated at its end; an eighth of it is warm-up, of 1 to 5 epochs."""
    schedule = {"epochs": epochs, "eval_every": epochs, "warmup_epochs": min(5, max(1, epochs // 8))}
    return {"model": size, "data": "mini64", "limit": limit, "fields": {**schedule, **fields}}


_CHOSEN: dict[str, Any] = {"best": ("rate",), "chosen_on": "0"}
_ACCURACY = (text("lr"), SEEDS, accuracy(), number("train_accuracy", "on training images", "{:.1f}"))

_FAST: _Ways = {
    "RepOpt, searched": {"scales": "searched"},
    "RepOpt, mean over channels": {"scales": "mean"},
    "RepOpt, stage means": {"scales": "searched", "change": stage_means},
    **{name: WAYS[name] for name in (LEARNED, TENTH)},
    **{
        f"RepOpt, learned, {name}": _ONE_RUN[name]
        for name in ("frozen at 30%", "never frozen", "never frozen, scales ten times as fast")
    },
    **{name: WAYS[name] for name in ("RepVGG", "QARepVGG")},
    "multipliers alone": {"scales": "searched", "fields": {"rules": "iteration"}},
}
_SLOW: _Ways = {  # for which the lowest of three learning rates was best, and a fourth was tried
    "RepOpt, depth": {"scales": "depth"},
    "RepOpt, ones": {"scales": "ones"},
    "Dirac": {"method": "dirac"},
    "initialization alone": {"scales": "searched", "fields": _ALONE},
    "initialization alone, stage means": {"scales": "searched", "change": stage_means, "fields": _ALONE},
    "plain SGD": WAYS["plain SGD"],
}
_CPU = Recipe(
    epochs=10, eval_every=10, batch_size=128, lr_batch=128, warmup_epochs=1, label_smoothing=0, crop_padding=4
)
ON_CPU: dict[str, Any] = {"model": "nano", "data": "cifar100", "recipe": _CPU, "limit": 20_000}

TABLE4_CPU = Table(
    title="Table 4 on a CPU: nano, 20,000 images",
    keys=("way", "model", "rate", "seed"),
    trainings=[
        *trainings(_FAST, ON_CPU, (0.03, 0.1, 0.3)),
        *trainings(_SLOW, ON_CPU, (0.01, 0.03, 0.1, 0.3)),
        *trainings({"plain SGD, torch's init": {"method": "sgd"}}, ON_CPU, (0.003, 0.01, 0.03, 0.1)),
    ],
    by=("way",),
    **_CHOSEN,
    best_first=True,
    columns=[text("way", "trained by"), *_ACCURACY, minus("RepVGG"), minus("Dirac")],
)

# {share of the data: images}; epochs are passes over these
_SHARES = {"10%": 5_000, "50%": 25_000, "100%": None}
_FEW = ("plain SGD", "Dirac", "RepOpt, searched", LEARNED, TENTH, "RepVGG")
_MAPPED = tuple(name for name in WAYS if name != TENTH)
_CELLS = (
    *product(("b0", "a0"), ("100%",), (15, 5, 40)),
    *product(("b0", "a0"), ("10%", "50%"), (5, 15, 40)),
    *product(("b0", "a0"), ("10%",), (120,)),
)
_ALSO_TENTH = (("a0", "100%", 15), ("a0", "100%", 40))
# {a cell of the map, which is a model, a share and epochs: its ways}
_IN_CELL = {cell: WAYS if cell[0] == "b0" or cell in _ALSO_TENTH else _MAPPED for cell in _CELLS}
# the longest: each way at the learning rate that was best at 40 epochs on all data; B0's Dirac has two, level
_LONGEST = {
    "b0": {
        "plain SGD": 0.1,
        "Dirac": 0.1,
        "initialization alone": 0.1,
        "RepOpt, searched": 0.2,
        "RepOpt, stage means": 0.2,
        "RepOpt, depth": 0.1,
        LEARNED: 0.2,
        TENTH: 0.1,
        "RepVGG": 0.2,
        "QARepVGG": 0.1,
    },
    "a0": {
        "plain SGD": 0.2,
        "Dirac": 0.2,
        "initialization alone": 0.2,
        "RepOpt, searched": 0.1,
        "RepOpt, stage means": 0.1,
        "RepOpt, depth": 0.1,
        LEARNED: 0.2,
        "RepVGG": 0.2,
        "QARepVGG": 0.2,
    },
}
_BASELINES = {name: WAYS[name] for name in ("plain SGD", "Dirac")}  # best at the lowest of the rates above
_LOWERED = {15: {name: way for name, way in WAYS.items() if name != LEARNED}, 40: _BASELINES}  # {epochs: ways}

WHERE = Table(
    title="Where does it pay?",
    keys=("model", "share", "epochs", "way", "rate", "seed"),
    trainings=[
        *(
            training
            for (size, share, epochs), names in _IN_CELL.items()
            for training in trainings(
                {name: WAYS[name] for name in names},
                mini64(epochs, size, _SHARES[share]),
                share=share,
                epochs=epochs,
            )
        ),
        *(
            training
            for epochs, ways in _LOWERED.items()
            for training in trainings(ways, mini64(epochs), (_LOWER,), share="100%", epochs=epochs)
        ),
        *(
            training
            for size, rates in _LONGEST.items()
            for share, (name, rate) in product(("50%", "100%"), rates.items())
            for training in trainings(
                {name: WAYS[name]}, mini64(120, size, _SHARES[share]), (rate,), share=share, epochs=120
            )
        ),
    ],
    by=("model", "share", "epochs", "way"),
    **_CHOSEN,
    order={"share": list(_SHARES), "epochs": ("5", "15", "40", "120"), "way": list(WAYS)},
    columns=[
        *("model", text("share", "of the data"), "epochs", text("way", "trained by"), *_ACCURACY),
        *(minus("RepVGG"), minus("Dirac"), minus("plain SGD")),
    ],
)

ONE_RUN = Table(
    title="One run: scales learned on the way",
    keys=("model", "epochs", "way", "rate", "seed"),
    trainings=[training for epochs in (15, 40) for training in trainings(_ONE_RUN, mini64(epochs), epochs=epochs)],
    by=("epochs", "way"),
    **_CHOSEN,
    order={"epochs": ("15", "40"), "way": list(_ONE_RUN)},
    columns=["epochs", text("way", "scales"), *_ACCURACY],
)

BEST = Table(
    title="RepOpt and RepVGG on other data",
    keys=("data", "model", "way", "rate", "seed"),
    trainings=[
        training
        for data in ("cifar100", "imagenette")
        for training in trainings(
            {name: WAYS[name] for name in _FEW},
            {"model": "b0", "data": data},
            RATES if data == "imagenette" else (*RATES, _LOWER, _LOWER / 2),  # 0.1 was best but for RepVGG
            data=data,
        )
    ],
    by=("data", "way"),
    **_CHOSEN,
    order={"way": _FEW},
    columns=["data", text("way", "trained by"), *_ACCURACY, minus("RepVGG"), minus("Dirac")],
)

# {weight decay: learning rates}; the more it is, the lower the best rate. The map has the paper's 4e-5.
_DECAY_RATES = {1e-3: (*RATES, _LOWER), 5e-3: (*RATES, _LOWER, _LOWER / 2)}
_DECAYED = ("plain SGD", "Dirac", "initialization alone", "RepOpt, searched", "RepVGG")

DECAY = Table(
    title="Weight decay that bites",
    keys=("model", "weight_decay", "way", "rate", "seed"),
    trainings=[
        *(
            training
            for decay, rates in _DECAY_RATES.items()
            for training in trainings(
                {name: WAYS[name] for name in _DECAYED},
                mini64(40, weight_decay=decay),
                rates,
                weight_decay=decay,
            )
        ),
        *trainings(_BASELINES, mini64(40, weight_decay=1e-3), (_LOWER / 2,), weight_decay=1e-3),
        *trainings({LEARNED: WAYS[LEARNED]}, mini64(40, weight_decay=1e-3), (*RATES, _LOWER), weight_decay=1e-3),
        *trainings({"RepVGG": WAYS["RepVGG"]}, mini64(40, weight_decay=1e-3), (_HIGHER,), weight_decay=1e-3),
        *trainings(
            {"QARepVGG": WAYS["QARepVGG"]},
            mini64(40, weight_decay=1e-3),
            (*RATES, _LOWER, _HIGHER),
            weight_decay=1e-3,
        ),
        *trainings({LEARNED: WAYS[LEARNED]}, mini64(40, weight_decay=5e-3), (_LOWER, _LOWER / 2), weight_decay=5e-3),
    ],
    by=("weight_decay", "way"),
    **_CHOSEN,
    order={"way": (*_DECAYED, "QARepVGG", LEARNED)},
    columns=[
        *(text("weight_decay", "weight decay"), text("way", "trained by"), *_ACCURACY),
        *(minus("RepVGG"), minus("initialization alone")),
    ],
)

BEST_DECAY = Table(
    title="RepOpt and RepVGG on other data, more decay",
    keys=("data", "model", "weight_decay", "way", "rate", "seed"),
    trainings=[
        training
        for data, name in product(("cifar100", "imagenette"), (LEARNED, "RepVGG"))
        for training in trainings(
            {name: WAYS[name]},
            {"model": "b0", "data": data, "fields": {"weight_decay": 1e-3}},
            (*RATES, _LOWER, _HIGHER),
            data=data,
            weight_decay=1e-3,
        )
    ],
    by=("data", "way"),
    **_CHOSEN,
    columns=["data", text("way", "trained by"), *_ACCURACY, minus("RepVGG")],
)

# {weight decay: learning rates}. With 1e-2, lr x decay x steps is about 1 at the recipe's rate, as in the paper.
_DECAY_RATES_CPU = {1e-3: (0.01, 0.03, 0.1, 0.3), 1e-2: (0.003, 0.01, 0.03, 0.1)}
DECAY_CPU = Table(
    title="Weight decay that bites, on a CPU",
    keys=("way", "model", "weight_decay", "rate", "seed"),
    trainings=[
        training
        for decay, rates in _DECAY_RATES_CPU.items()
        for training in trainings(
            {name: WAYS[name] for name in (*_DECAYED, "RepOpt, depth", LEARNED)},
            {**ON_CPU, "fields": {"weight_decay": decay}},
            rates,
            weight_decay=decay,
        )
    ],
    by=("weight_decay", "way"),
    **_CHOSEN,
    order={"weight_decay": ("0.001", "0.01")},
    best_first=True,
    columns=[
        *(text("weight_decay", "weight decay"), text("way", "trained by"), *_ACCURACY),
        *(minus("RepVGG"), minus("Dirac")),
    ],
)

_ADAMW: dict[str, Any] = {"optimizer": "AdamW", "weight_decay": 0.05}
_ADAMW_WAYS: _Ways = {
    "AdamW": {"method": "sgd", "fields": {**_ADAMW, "kernel": "paper"}},
    "AdamW, Dirac": {"method": "dirac", "fields": _ADAMW},
    "RepOpt-AdamW, searched": {"scales": "searched", "fields": _ADAMW},
    "RepOpt-AdamW, depth": {"scales": "depth", "fields": _ADAMW},
}

ADAMW = Table(
    title="AdamW",
    keys=("model", "way", "rate", "seed"),
    trainings=[*trainings(_ADAMW_WAYS, mini64(15), (1e-3, 3e-3, 3e-4, 1e-4))],
    by=("way",),
    **_CHOSEN,
    order={"way": list(_ADAMW_WAYS)},
    columns=[text("way", "trained by"), *_ACCURACY, minus("AdamW"), minus("AdamW, Dirac")],
)

ADAMW_CPU = Table(
    title="AdamW on a CPU: nano, 20,000 images",
    keys=("way", "model", "rate", "seed"),
    trainings=[
        *trainings(
            {
                **_ADAMW_WAYS,
                "RepOpt-AdamW, learned": _learned(**_ADAMW),
                "RepOpt-AdamW, learned, frozen at 10%": _learned_slowly(0.1, **_ADAMW),
            },
            ON_CPU,
            (3e-4, 1e-3, 3e-3, 1e-2),
        )
    ],
    by=("way",),
    **_CHOSEN,
    best_first=True,
    columns=ADAMW.columns,
)
