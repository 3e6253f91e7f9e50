"""Table 8 and appendix C: what INT8 costs, by calibration and by a short training, and the spread of a kernel."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper.jobs import Lines, Scope, Training
from paper.kernel_spread import POSITIONS, run_kernels, spreads
from paper.tables import Table
from paper.view import SEEDS, Column, Record, accuracy, mean, number, over_rows, papers, spread, text
from paper.workshop import ENVIRONMENT, Workshop, figures_of
from repopt.quantize import Int8, QuantizeJob, quantize_run
from repopt.train.methods import Method
from repopt.train.runs import run_data

_METHODS: tuple[Method, ...] = ("repopt", "repvgg", "qarepvgg", "sgd")
PTQ: list[Any] = [("channel", "histogram"), ("channel", "minmax"), ("tensor", "histogram"), ("tensor", "minmax")]
_SETTINGS: list[Any] = [*(("ptq", *each) for each in PTQ), ("qat", "channel", "histogram")]


def _b0(method: Method, measure: Any) -> Training:
    """A B0 on CIFAR-100, trained for long; plain SGD has He's init, which is better for it."""
    fields = {"epochs": 120, "eval_every": 120, "kernel": "paper" if method == "sgd" else "authors"}
    how: dict[str, Any] = {"method": method, "data": "cifar100", "fields": fields, "measure": measure}
    return Training(model="b0", key={"trained_by": method}, **how)


def int8_records(jobs: Sequence[QuantizeJob], training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """What each of several ways to quantize costs the network of a training."""
    run, records = training.run(scope, seed, workshop, weights=True), Lines()
    loaded = run_data(run, limit=scope.limit)
    for job in jobs:
        with TemporaryDirectory() as folder, workshop.sharing():
            at: dict[str, Any] = {"out": Path(folder, "int8"), "device": workshop.chosen_device, "loaded": loaded}
            record = quantize_run(run, job, quiet=workshop.quiet, **at).record
        records.append({**record, "train_accuracy": figures_of(run)["train_accuracy"]})
    return records


def _quantized(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    jobs = []
    for method, weights, calibrator in _SETTINGS[:1] if scope.quick else _SETTINGS:
        setting = Int8(weights=weights, calibrator=calibrator, images=16 if scope.quick else 1000)
        jobs.append(QuantizeJob(method=method, setting=setting, epochs=5, limit=scope.limit))  # epochs of QAT
    return int8_records(jobs, training, scope, seed, workshop)


def int8_column(heading: str, **setting: str) -> Column:
    """INT8 accuracy, in brackets the points that it costs; a negative cost is a gain."""

    def cell(rows: Sequence[Record]) -> str:
        return f"{mean(rows, 'int8_accuracy'):.2f} ({spread(rows, 'drop')})" if rows else ""

    return over_rows(heading, cell, **setting)


TABLE8 = Table(
    title="Table 8: INT8",
    keys=("trained_by", "model", "seed"),
    trainings=[_b0(method, _quantized) for method in _METHODS],
    figures=(
        *("method", "weights", "calibrator", "qat_epochs", "qat_lr", "form", "float_accuracy", "int8_accuracy"),
        *("drop", "train_accuracy", "images", "val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("trained_by",),
    order={"trained_by": _METHODS},
    columns=[
        *("trained_by", text("kernel", "init"), SEEDS),
        accuracy("float", "float_accuracy", method="ptq", weights="channel", calibrator="histogram"),
        *(int8_column(f"per-{by} weights, {how}", method="ptq", weights=by, calibrator=how) for by, how in PTQ),
        int8_column("QAT, per-channel weights", method="qat"),
    ],
)


def _kernels(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run = training.run(scope, seed, workshop, weights=True)
    found = run_kernels(run)
    about = {**figures_of(run), "layer": found.layer.name}
    return [{**about, "stage": stage, **spreads(*kernels)} for stage, kernels in found.kernels.items()]


STAGES = ("before fusing BN", "3x3 kernel", "after fusing BN", "after branch addition")
_PAPER = {
    ("repvgg", "before fusing BN"): "0.0131, 0.0128, 0.0131",
    ("repvgg", "after fusing BN"): "0.0176, 0.0175, 0.0177",
    ("repvgg", "after branch addition"): "0.0236, 0.0500, 0.0177",
    ("repopt", "3x3 kernel"): "0.0066, 0.0151, 0.0045",
}
_AT_INIT = [f"{position}_at_init" for position in POSITIONS]

TABLE_C = Table(
    title="Appendix C: the spread of a kernel",
    keys=("trained_by", "model", "seed"),
    trainings=[_b0(method, _kernels) for method in ("repvgg", "repopt")],
    figures=("layer", "stage", *POSITIONS, *_AT_INIT, "train_accuracy", "epochs", "kernel", *ENVIRONMENT),
    by=("trained_by", "stage"),
    order={"trained_by": ("repvgg", "repopt"), "stage": STAGES},
    columns=[
        *("trained_by", text("stage", "kernel"), SEEDS),
        *(number(position, form="{:.4f}") for position in POSITIONS),
        over_rows("central / surrounding", lambda rows: f"{mean(rows, 'central') / mean(rows, 'surrounding'):.1f}"),
        *(number(position, position.replace("_at_", ", at "), "{:.4f}") for position in _AT_INIT),
        papers("paper", _PAPER, "trained_by", "stage"),
    ],
)
