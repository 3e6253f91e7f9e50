"""Table 8 and appendix C's first table: what INT8 costs by calibration, and by a short training."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from paper.jobs import TRAINED_BY, Scope, Training
from paper.tables import Table
from paper.view import SEEDS, Column, Line, View, accuracy, matching, mean, spread, text
from paper.workshop import Workshop
from repopt.quantize import Int8, QuantizeJob, quantize_run
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_METHODS: tuple[Method, ...] = ("repopt", "repvgg", "qarepvgg", "sgd")
PTQ = [("channel", "histogram"), ("channel", "minmax"), ("tensor", "histogram"), ("tensor", "minmax")]
_SETTINGS = [*(("ptq", *each) for each in PTQ), ("qat", "channel", "histogram")]
_FIGURES = (
    *("method", "weights", "calibrator", "qat_epochs", "qat_lr", "form"),
    *("float_accuracy", "int8_accuracy", "drop", "images", "val_images", "epochs", "kernel"),
    *("hardware", "threads", "python", "torch", "date"),
)


def trained_b0(trained_by: Method) -> Training:
    """A B0 on CIFAR-100; plain SGD has He's init, which is better for it."""
    recipe = replace(TRAINED_BY["cifar100"], epochs=120, eval_every=120)
    fields = {"kernel": "paper" if trained_by == "sgd" else Recipe.kernel}
    how: dict[str, Any] = {"scales": "searched"} if trained_by == "repopt" else {"method": trained_by}
    return Training(model="b0", key={"trained_by": trained_by}, data="cifar100", recipe=recipe, fields=fields, **how)


def _read(scope: Scope, workshop: Workshop, run: Path) -> list[dict[str, Any]]:
    out, lines = run / "int8", []
    for method, weights, calibrator in _SETTINGS[:1] if scope.quick else _SETTINGS:
        shutil.rmtree(out, ignore_errors=True)  # of an interrupted row
        setting: Any = {"weights": weights, "calibrator": calibrator, "images": 16 if scope.quick else 1000}
        how: Any = {"method": method, "setting": Int8(**setting), "epochs": 5}  # of QAT
        job = QuantizeJob(limit=scope.limit, **how)
        with workshop.sharing():
            found = quantize_run(run, job, out=out, device=workshop.chosen_device, quiet=workshop.quiet)
        lines.append(found.record)
        shutil.rmtree(out)
    return lines


def int8_column(heading: str, **setting: str) -> Column:
    """INT8 accuracy, in brackets the points that it costs; a negative cost is a gain."""

    def cell(line: Line) -> str:
        rows = matching(line.rows, **setting)
        return f"{mean(rows, 'int8_accuracy'):.2f} ({spread(rows, 'drop')})" if rows else ""

    return Column(heading, cell)


TABLE = Table(
    title="Table 8: INT8",
    keys=("trained_by", "model", "seed"),
    trainings=[trained_b0(method) for method in _METHODS],
    read=_read,
    weights=True,
    figures=_FIGURES,
    view=View(
        by=("trained_by",),
        order={"trained_by": _METHODS},
        columns=[
            *("trained_by", text("kernel", "init"), SEEDS),
            accuracy("float", "float_accuracy", method="ptq", weights="channel", calibrator="histogram"),
            *(
                int8_column(
                    f"per-{weights} weights, {calibrator}", method="ptq", weights=weights, calibrator=calibrator
                )
                for weights, calibrator in PTQ
            ),
            int8_column("QAT, per-channel weights", method="qat"),
        ],
    ),
)
