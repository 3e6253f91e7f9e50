"""What INT8 costs the models of the map: by ONNX Runtime, by torchao, by GPTQ, and after a short training with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product, starmap
from typing import Any

from paper.evidence import LEARNED, RATES, WAYS, mini64, trainings
from paper.jobs import FIRST_SEED, Lines, Scope, Training
from paper.table8 import int8_column, int8_records
from paper.tables import Table
from paper.view import SEEDS, Column, accuracy, text
from paper.workshop import ENVIRONMENT, Workshop
from repopt.quantize import Int8, QuantizeJob

# {weight decay: {way: learning rates}}; at the higher of two RepVGG has wider ranges
_QUANTIZED: Mapping[float, Mapping[str, Sequence[float]]] = {
    4e-5: {
        **{"RepOpt, searched": (0.1,), LEARNED: (0.2,), "RepVGG": RATES, "QARepVGG": (0.1,)},
        **{"Dirac": (0.1,), "plain SGD": (0.1,)},
    },
    1e-3: {
        **{"RepOpt, searched": (0.1,), LEARNED: (0.1,), "RepVGG": RATES, "QARepVGG": RATES},
        **{"Dirac": (0.05,), "plain SGD": (0.05,)},
    },
}
_ORT: list[tuple[Any, int]] = [*product(("channel", "tensor"), (100, 1000))]
# GPTQ, and without it
_ROUNDED: list[tuple[Any, Any, Any]] = [*product(("channel", "tensor"), ("nearest", "gptq"), ("minmax", "percentile"))]
_BY_GPTQ: Mapping[float, Mapping[str, float]] = {  # {weight decay: {way: learning rate}}
    4e-5: {"RepOpt, searched": 0.1},
    1e-3: {LEARNED: 0.1, "RepVGG": 0.2, "QARepVGG": 0.2},
}


def _quantized(
    settings: Sequence[Int8], quick: Int8, training: Training, scope: Scope, seed: int, workshop: Workshop
) -> Lines:
    """A line for each setting; those of torchao for the first seed alone."""
    asked = [each for each in settings if each.backend == "onnxruntime" or seed == FIRST_SEED]
    jobs = [QuantizeJob(setting=each, limit=scope.limit) for each in ([quick] if scope.quick else asked)]
    return int8_records(jobs, training, scope, seed, workshop)


_calibrated = partial(
    _quantized,
    [*(Int8(backend="onnxruntime", weights=by, images=images) for by, images in _ORT), Int8()],
    Int8(backend="onnxruntime", images=16),
)


def _rounded(*calibrators: str) -> Callable[[Training, Scope, int, Workshop], Lines]:
    """Measures what GPTQ changes, with activations in the ranges of these calibrators."""
    settings = [
        Int8(backend="onnxruntime", weights=by, rounding=rounding, calibrator=calibrator)
        for by, rounding, calibrator in _ROUNDED
        if calibrator in calibrators
    ]
    return partial(_quantized, settings, Int8(backend="onnxruntime", rounding="gptq", images=16))


def _trained_on(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """QAT without and with the multipliers."""
    jobs = [
        QuantizeJob(method="qat", epochs=1 if scope.quick else 2, multipliers=multipliers, limit=scope.limit)
        for multipliers in (False, True)
    ]
    return int8_records(jobs, training, scope, seed, workshop)


def _by_ort(by: str, images: int) -> Column:
    return int8_column(f"{by}, {images:,}", backend="onnxruntime", weights=by, images=str(images))


_TRAINED = (
    *("weight_decay", text("way", "trained by"), text("rate", "lr"), SEEDS),
    accuracy("float", "float_accuracy", weights="tensor", images="100"),
)
INT8 = Table(
    title="INT8 of B0 on mini-ImageNet",
    keys=("weight_decay", "way", "rate", "model", "seed"),
    trainings=[
        training
        for decay, ways in _QUANTIZED.items()
        for name, rates in ways.items()
        for training in trainings(
            {name: {**WAYS[name], "measure": _calibrated}}, mini64(40, weight_decay=decay), rates, weight_decay=decay
        )
    ],
    figures=(
        *("backend", "weights", "calibrator", "images", "form", "float_accuracy", "int8_accuracy", "drop"),
        *("val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("weight_decay", "way", "rate"),
    order={"way": list(_QUANTIZED[4e-5])},
    columns=[*_TRAINED, *starmap(_by_ort, _ORT), int8_column("torchao", backend="x86")],
)
IN_SHORT = replace(INT8, csv="int8_mini", columns=[*_TRAINED, *(_by_ort(by, 1000) for by in ("channel", "tensor"))])


def _by_rounding(by: str, rounding: str, calibrator: str) -> Column:
    return int8_column(f"{by}, {rounding}, {calibrator}", weights=by, rounding=rounding, calibrator=calibrator)


ROUNDING = Table(
    title="INT8 by GPTQ: B0, mini-ImageNet",
    keys=("weight_decay", "way", "rate", "model", "seed"),
    trainings=[
        training
        for decay, ways in _BY_GPTQ.items()
        for name, rate in ways.items()
        for training in trainings(
            {name: {**WAYS[name], "measure": _rounded("minmax")}},
            mini64(40, weight_decay=decay),
            (rate,),
            weight_decay=decay,
        )
    ],
    figures=(
        *("backend", "weights", "rounding", "calibrator", "images", "form", "float_accuracy", "int8_accuracy", "drop"),
        *("val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("weight_decay", "way"),
    columns=[
        *("weight_decay", text("way", "trained by"), SEEDS),
        accuracy("float", "float_accuracy", weights="channel", rounding="nearest", calibrator="minmax"),
        *starmap(_by_rounding, _ROUNDED),
    ],
)
ROUNDING_CPU = replace(
    ROUNDING,
    title="INT8 by GPTQ, on a CPU: B0, CIFAR-100",
    trainings=[
        replace(training, one_seed=name == "RepVGG")
        for name in ("RepOpt, searched", LEARNED, "RepVGG")
        for training in trainings(
            {name: {**WAYS[name], "measure": _rounded("minmax", "percentile")}},
            {
                "model": "b0",
                "data": "cifar100",
                "fields": {"epochs": 10, "eval_every": 10, "warmup_epochs": 1, "weight_decay": 1e-3},
            },
            (0.1,),
            weight_decay=1e-3,
        )
    ],
)

QAT = Table(
    title="QAT with and without the multipliers",
    keys=("way", "model", "seed"),
    trainings=[
        *trainings({"RepOpt, searched": {**WAYS["RepOpt, searched"], "measure": _trained_on}}, mini64(40), (0.1,)),
    ],
    figures=(
        *("multipliers", "weights", "qat_epochs", "qat_lr", "form", "float_accuracy", "int8_accuracy", "drop"),
        *("val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("multipliers",),
    columns=[
        text("multipliers", "multipliers", {"False": "without", "True": "with"}),
        SEEDS,
        text("qat_epochs", "epochs of QAT"),
        accuracy("float", "float_accuracy"),
        int8_column("INT8"),
    ],
)
