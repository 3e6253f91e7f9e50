"""What INT8 costs the models of the map: by ONNX Runtime, by torchao, and after quantization-aware training."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper.evidence import WAYS, mini64, trainings
from paper.jobs import Lines, Scope, Training
from paper.table8 import int8_column
from paper.tables import Table
from paper.view import SEEDS, accuracy, text
from paper.workshop import ENVIRONMENT, Workshop
from repopt.quantize import Int8, QuantizeJob, quantize_run

_AT_TWICE = "RepVGG, lr 0.2"  # its better one; 0.1 is that of the others
_QUANTIZED = ("RepOpt, searched", "RepVGG", _AT_TWICE, "QARepVGG", "Dirac", "plain SGD")
_ORT: list[tuple[Any, int]] = [*product(("channel", "tensor"), (100, 1000))]


def _quantized(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """A line for each setting of ONNX Runtime; one by torchao for the first seed."""
    settings = [Int8(backend="onnxruntime", weights=by, images=images) for by, images in _ORT]
    settings += [Int8()] if seed == scope.seeds[0] else []
    quick = [Int8(backend="onnxruntime", images=16)]
    jobs = [QuantizeJob(setting=setting, limit=scope.limit) for setting in (quick if scope.quick else settings)]
    return _records(jobs, training, scope, seed, workshop)


def _trained_on(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """QAT without and with the multipliers."""
    jobs = [
        QuantizeJob(method="qat", epochs=1 if scope.quick else 2, multipliers=multipliers, limit=scope.limit)
        for multipliers in (False, True)
    ]
    return _records(jobs, training, scope, seed, workshop)


def _records(
    jobs: Sequence[QuantizeJob], training: Training, scope: Scope, seed: int, workshop: Workshop
) -> list[dict[str, Any]]:
    run, lines = training.run(scope, seed, workshop, weights=True), []
    for job in jobs:
        with TemporaryDirectory() as folder, workshop.sharing():
            at: dict[str, Any] = {"out": Path(folder, "int8"), "device": workshop.chosen_device}
            lines.append(quantize_run(run, job, quiet=workshop.quiet, **at).record)
    return lines


INT8 = Table(
    title="INT8 of B0 on mini-ImageNet",
    keys=("way", "model", "seed"),
    trainings=[
        training
        for name in _QUANTIZED
        for training in trainings(
            {name: {**WAYS["RepVGG" if name == _AT_TWICE else name], "measure": _quantized}},
            mini64(40),
            (0.2 if name == _AT_TWICE else 0.1,),
        )
    ],
    figures=(
        *("backend", "weights", "calibrator", "images", "form", "float_accuracy", "int8_accuracy", "drop"),
        *("val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("way",),
    order={"way": _QUANTIZED},
    columns=[
        *(text("way", "trained by"), SEEDS, accuracy("float", "float_accuracy", weights="tensor", images="100")),
        *(
            int8_column(f"{by}, {images:,}", backend="onnxruntime", weights=by, images=str(images))
            for by, images in _ORT
        ),
        int8_column("torchao", backend="x86"),
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
