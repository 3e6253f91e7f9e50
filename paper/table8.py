"""Table 8 and appendix C: what INT8 costs, by calibration and by a short training, and the spread of a kernel."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper.jobs import TRAINED_BY, Lines, Scope, Training
from paper.kernel_spread import POSITIONS, run_kernels, spreads
from paper.tables import Table
from paper.view import SEEDS, Column, Line, accuracy, matching, mean, number, papers, spread, text
from paper.workshop import ENVIRONMENT, Workshop, figures_of
from repopt.quantize import Int8, QuantizeJob, quantize_run

# a B0 on CIFAR-100; plain SGD has He's init, which is better for it
_RECIPE = replace(TRAINED_BY["cifar100"], epochs=120, eval_every=120)
_METHODS: dict[str, dict[str, Any]] = {
    "repopt": {"scales": "searched"},
    "repvgg": {"method": "repvgg"},
    "qarepvgg": {"method": "qarepvgg"},
    "sgd": {"method": "sgd", "fields": {"kernel": "paper"}},
}
PTQ = [("channel", "histogram"), ("channel", "minmax"), ("tensor", "histogram"), ("tensor", "minmax")]
_SETTINGS = [*(("ptq", *each) for each in PTQ), ("qat", "channel", "histogram")]


def _trained_b0(trained_by: str, measure: Any) -> Training:
    how = {**_METHODS[trained_by], "measure": measure}
    return Training(model="b0", key={"trained_by": trained_by}, data="cifar100", recipe=_RECIPE, **how)


def _quantized(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run, lines = training.run(scope, seed, workshop, weights=True), []
    at: dict[str, Any] = {"device": workshop.chosen_device, "quiet": workshop.quiet}
    for method, weights, calibrator in _SETTINGS[:1] if scope.quick else _SETTINGS:
        setting: Any = {"weights": weights, "calibrator": calibrator, "images": 16 if scope.quick else 1000}
        how: Any = {"method": method, "setting": Int8(**setting), "epochs": 5}  # of QAT
        with TemporaryDirectory() as folder, workshop.sharing():
            found = quantize_run(run, QuantizeJob(limit=scope.limit, **how), out=Path(folder, "int8"), **at)
        lines.append({**found.record, "train_accuracy": figures_of(run)["train_accuracy"]})
    return lines


def int8_column(heading: str, **setting: str) -> Column:
    """INT8 accuracy, in brackets the points that it costs; a negative cost is a gain."""

    def cell(line: Line) -> str:
        rows = matching(line.rows, **setting)
        return f"{mean(rows, 'int8_accuracy'):.2f} ({spread(rows, 'drop')})" if rows else ""

    return Column(heading, cell)


def _calibrated(weights: str, calibrator: str) -> Column:
    heading = f"per-{weights} weights, {calibrator}"
    return int8_column(heading, method="ptq", weights=weights, calibrator=calibrator)


TABLE8 = Table(
    title="Table 8: INT8",
    keys=("trained_by", "model", "seed"),
    trainings=[_trained_b0(method, _quantized) for method in _METHODS],
    figures=(
        *("method", "weights", "calibrator", "qat_epochs", "qat_lr", "form", "float_accuracy", "int8_accuracy"),
        *("drop", "train_accuracy", "images", "val_images", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("trained_by",),
    order={"trained_by": list(_METHODS)},
    columns=[
        *("trained_by", text("kernel", "init"), SEEDS),
        accuracy("float", "float_accuracy", method="ptq", weights="channel", calibrator="histogram"),
        *(_calibrated(*setting) for setting in PTQ),
        int8_column("QAT, per-channel weights", method="qat"),
    ],
)


_STAGES = ("before fusing BN", "3x3 kernel", "after fusing BN", "after branch addition")
_PAPER = {
    ("repvgg", "before fusing BN"): "0.0131, 0.0128, 0.0131",
    ("repvgg", "after fusing BN"): "0.0176, 0.0175, 0.0177",
    ("repvgg", "after branch addition"): "0.0236, 0.0500, 0.0177",
    ("repopt", "3x3 kernel"): "0.0066, 0.0151, 0.0045",
}


def _kernels(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run = training.run(scope, seed, workshop, weights=True)
    found = run_kernels(run)
    about = {**figures_of(run), "layer": found.layer.name}
    return [{**about, "stage": stage, **spreads(*kernels)} for stage, kernels in found.kernels.items()]


TABLE_C = Table(
    title="Appendix C: the spread of a kernel",
    keys=("trained_by", "model", "seed"),
    trainings=[_trained_b0(method, _kernels) for method in ("repvgg", "repopt")],
    figures=(
        *("layer", "stage", *POSITIONS, *(f"{position}_at_init" for position in POSITIONS)),
        *("train_accuracy", "epochs", "kernel", *ENVIRONMENT),
    ),
    by=("trained_by", "stage"),
    order={"trained_by": ("repvgg", "repopt"), "stage": _STAGES},
    columns=[
        *("trained_by", text("stage", "kernel"), SEEDS),
        *(number(position, form="{:.4f}") for position in POSITIONS),
        Column(
            "central / surrounding", lambda line: f"{mean(line.rows, 'central') / mean(line.rows, 'surrounding'):.1f}"
        ),
        *(number(f"{position}_at_init", f"{position}, at init", "{:.4f}") for position in POSITIONS),
        papers("paper", _PAPER, "trained_by", "stage"),
    ],
)
