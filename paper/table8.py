"""Table 8 and appendix C's first table: what INT8 costs by calibration, and by a short training."""

import shutil
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from paper.jobs import Scope, Training, training_job
from paper.rows import matching, mean, spread
from paper.tables import Table, TableRow
from paper.view import SEEDS, Column, Line, View, accuracy, text
from paper.workshop import Workshop
from repopt.quantize import Int8, quantize_run
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

_METHODS: tuple[Method, ...] = ("repopt", "repvgg", "qarepvgg", "sgd")
PTQ = [("channel", "histogram"), ("channel", "minmax"), ("tensor", "histogram"), ("tensor", "minmax")]
_FIGURES = (
    *("method", "weights", "calibrator", "qat_epochs", "qat_lr", "form"),
    *("float_accuracy", "int8_accuracy", "drop", "images", "val_images", "epochs", "kernel"),
    *("hardware", "threads", "python", "torch", "date"),
)


def _rows(scope: Scope) -> Iterator[TableRow]:
    for seed, trained_by in product(scope.seeds, _METHODS[:1] if scope.quick else _METHODS):
        key = {"trained_by": trained_by, "model": scope.model("b0"), "seed": seed}
        yield TableRow(key=key, measure=partial(_measure, scope, trained_by, seed))


def trained_b0(scope: Scope, trained_by: Method, seed: int, workshop: Workshop) -> Path:
    """A B0 with its weights; plain SGD has He's init, which is better for it."""
    epochs = {} if scope.quick else {"epochs": 120, "eval_every": 120}
    fields = {**epochs, "kernel": "paper" if trained_by == "sgd" else Recipe.kernel}
    how: dict[str, Any] = {"scales": "searched"} if trained_by == "repopt" else {"method": trained_by}
    training = Training(model="b0", data="cifar100", fields=fields, **how)
    return workshop.run(training_job(scope, workshop, training, seed), weights=True)


def _measure(scope: Scope, trained_by: Method, seed: int, workshop: Workshop) -> list[dict[str, Any]]:
    run, lines = trained_b0(scope, trained_by, seed, workshop), []
    settings = [("ptq", *each) for each in PTQ] + [("qat", "channel", "histogram")]
    for method, weights, calibrator in settings[:1] if scope.quick else settings:
        out = run / "int8"
        shutil.rmtree(out, ignore_errors=True)  # of an interrupted row
        with workshop.sharing():
            found = quantize_run(
                run,
                method=method,  # type: ignore[arg-type]
                setting=Int8(weights=weights, calibrator=calibrator, images=16 if scope.quick else 1000),  # type: ignore[arg-type]
                limit=scope.limit,
                out=out,
                epochs=5,  # of QAT
                device=workshop.chosen_device,
                quiet=workshop.quiet,
            )
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
    name="table8",
    title="Table 8: INT8",
    keys=("trained_by", "model", "seed"),
    others=_rows,
    data=("cifar100",),
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
