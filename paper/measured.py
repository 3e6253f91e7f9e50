"""How the rows are shown that other commands have measured, and parts of tables that stand on other pages."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import product, starmap

from paper import evidence, evidence_int8, table4, table7, table8
from paper.kernel_spread import POSITIONS
from paper.table8 import int8_column
from paper.view import (
    SEEDS,
    Column,
    Line,
    View,
    accuracy,
    difference,
    matching,
    mean,
    number,
    papers,
    spread,
    text,
    values,
)

_CIFAR = {"data": "cifar100"}
_PTQ = {**_CIFAR, "backend": "x86", "method": "ptq"}
_XEON = "Intel(R) Xeon(R) Processor, 2 cores"
_FLOAT, _INT8 = Column("float", lambda line: spread(line.rows[:1], "float_accuracy")), int8_column("INT8")
_MAP_ORDER = {column: texts for column, texts in evidence.WHERE.order.items() if column != "way"}
_OURS, _OTHERS = (evidence.LEARNED, "RepOpt, searched"), ("plain SGD", "RepVGG", "Dirac")
_PAPER_GAPS = {name: -gap for name, gap in table4.PAPER_GAPS.items()}
_README = {
    "RepOptimizer": "RepOpt, scales searched on CIFAR-100",
    "SGD, RepVGG": "RepVGG, at the best learning rate tried",
    "SGD": "plain SGD, at the best init and learning rate tried",
}


def _repopt_minus(line: Line) -> object:
    ours = next(each for each in line.table if each["optimizer"] == "RepOptimizer")
    return "" if ours is line else difference(ours.rows, line.rows) or ""


def _median(column: str, heading: str) -> Column:
    """Over all recorded runs, and how far they lie apart."""

    def cell(line: Line) -> str:
        found = values(line.rows, column)
        if not found:
            return ""
        apart = f" ({min(found):.2f} to {max(found):.2f}, {len(found)} runs)" if min(found) < max(found) else ""
        return f"{statistics.median(found):.2f}{apart}"

    return Column(heading, cell)


def _steps(heading: str, column: str, implementation: str) -> Column:
    """Times the stock optimizer's, of one implementation."""

    def cell(line: Line) -> str:
        found = values(matching(line.rows, implementation=implementation), column)
        return f"{statistics.median(found):.2f}" if found else ""

    return Column(heading, cell)


def _by_images(images: str, trim: str = "0.0") -> Column:
    trimmed = f", trimmed by {float(trim):.0%}" if float(trim) else ""
    return int8_column(f"{int(images):,}{trimmed}", images=images, trim=trim)


def _first(weights: str, calibrator: str) -> Column:
    """The INT8 accuracy of the first run that was calibrated so: some were calibrated on another machine too."""
    every = int8_column(f"per-{weights}, {calibrator}", weights=weights, calibrator=calibrator)

    def cell(line: Line) -> object:
        rows = matching(line.rows, weights=weights, calibrator=calibrator)[:1]
        return every.cell(replace(line, rows=rows)) if rows else ""

    return Column(every.heading, cell)


def _calibrated(weights: str) -> Column:
    wanted = {"method": "ptq", "weights": weights, "calibrator": "histogram"}
    return accuracy(f"INT8, per-{weights} weights", "int8_accuracy", **wanted)


def _by_way(way: str, column: str = "val_accuracy", heading: str = "", form: str = "") -> Column:
    """What a way reaches in a cell of the map, at its best learning rate."""

    def cell(line: Line) -> str:
        rows = evidence.WHERE.at_best(matching(line.rows, way=way))
        return form.format(mean(rows, column)) if form and rows else spread(rows, column)

    return Column(heading or way, cell)


def _ahead(ours: str, other: str) -> Column:
    """By how much one way is ahead of another in a cell of the map, each at its best learning rate."""

    def cell(line: Line) -> object:
        one, two = (evidence.WHERE.at_best(matching(line.rows, way=way)) for way in (ours, other))
        return difference(one, two) or ""

    return Column(f"{ours.removeprefix('RepOpt, ')} minus {other}", cell)


def _kernel(position: str) -> Column:
    return Column(position, lambda line: f"{float(line[position]):.4f} ({float(line[f'{position}_at_init']):.4f})")


VIEWS: Mapping[str, View] = {
    "readme": View(
        csv="table4",
        by=("optimizer",),
        best=("init", "rate"),
        where={"model": "repopt_vgg_b1"},
        order={"optimizer": list(_README)},
        columns=[
            *(text("optimizer", "method", _README), SEEDS, accuracy(), Column("RepOpt minus this", _repopt_minus)),
            papers("the paper's difference, on ImageNet", _PAPER_GAPS, "optimizer", form="{:+.2f}"),
        ],
    ),
    "map": View(
        csv="where",
        by=("model", "share", "epochs"),
        order=_MAP_ORDER,
        columns=[
            *(text("share", "of the data"), "epochs"),
            *map(_by_way, ("plain SGD", "Dirac", "RepOpt, searched", evidence.LEARNED, "RepVGG")),
            _by_way("RepOpt, searched", "train_accuracy", "RepOpt on training images", "{:.0f}"),
        ],
    ),
    "ahead": View(
        csv="where",
        by=("model", "share", "epochs"),
        order=_MAP_ORDER,
        columns=["model", "epochs", *starmap(_ahead, product(_OURS, _OTHERS))],
    ),
    "int8_worth": evidence_int8.IN_SHORT,
    # of one task, which its columns need not name
    "dense": replace(table7.TABLE7, csv="table7", columns=table7.TABLE7.columns[1:]),
    "readme_int8": View(
        csv="table8",
        by=("trained_by",),
        order=table8.TABLE8.order,
        columns=[
            *("trained_by", SEEDS, accuracy("float", "float_accuracy", weights="channel", calibrator="histogram")),
            *(_calibrated("channel"), _calibrated("tensor"), accuracy("INT8 after QAT", "int8_accuracy", method="qat")),
        ],
    ),
    "step_ratios": View(
        csv="bench_step",
        by=("rule", "way"),
        order={"rule": ("sgd", "adamw", "adam", "lion"), "way": ("stock", "plain", "grad", "closed", "branch")},
        columns=[
            *("rule", "way", _steps("a step alone", "ratio", "fused"), _steps("in a loop", "queued_ratio", "fused")),
            _steps("as a CUDA graph", "ratio", "fused, graph"),
            number("repopt_bytes", "kept, MB", "{:.2f}", 1e6),
        ],
    ),
    "bench_step": View(
        by=("rule", "implementation", "way"),
        columns=[
            Column("optimizer", lambda line: f"{line['rule']}, {line['implementation']}", False),
            *("way", _median("milliseconds", "ms"), _median("ratio", "ratio"), _median("queued_ratio", "in a loop")),
            number("state_bytes", "state MB", "{:.1f}", 1e6),
            number("repopt_bytes", "kept MB", "{:.2f}", 1e6),
            number("peak_bytes", "peak MB", "{:.1f}", 1e6),
        ],
    ),
    "imagenette": View(
        by=("method", "kernel"),
        best_first=True,
        columns=[
            *("method", text("kernel", "init"), SEEDS, accuracy(), number("images_per_second", "images/s")),
            Column("peak GB", lambda line: f"{min(values(line.rows, 'peak_memory_bytes')) / 1e9:.1f}"),
            number("train_seconds", "training, s", "{:.1f}"),
        ],
    ),
    "search": View(
        columns=[
            *("model", "data", "recipe", "precision", "seed", accuracy()),
            *(number(f"{part}_seconds", f"{part}, s", "{:.1f}") for part in ("compile", "train", "eval", "save")),
            "note",
        ],
    ),
    "bench_train": View(
        columns=[
            *("model", text("batch_size", "batch"), "precision", "hardware", "method"),
            *(number("images_per_second", "images/s"), number("ratio", form="{:.2f}")),
            number("peak_bytes", "peak GB", "{:.1f}", 1e9),
            *(number("compile_seconds", "compile, s", "{:.0f}"), "date"),
        ],
    ),
    "compare_inference": View(  # by `inference_speed` of what `as_deployed` gives for the networks of compare-*.json
        columns=["model", text("size", "pixels"), "trained by", number("inference", "inference, images/s")]
    ),
    "int8_ptq": View(
        csv="int8",
        by=("trained_by", "epochs", "form", "seed"),
        where={**_PTQ, "images": "1000", "trim": "0.0"},
        columns=[
            *("trained_by", "epochs", "form", "seed", _FLOAT),
            *(_first(weights, calibrator) for weights, calibrator in table8.PTQ),
        ],
    ),
    "int8_images": View(
        csv="int8",
        by=("trained_by", "seed"),
        where={**_PTQ, "form": "deployed", "epochs": "60", "hardware": _XEON, "calibrator": "histogram"},
        columns=[
            *("trained_by", "seed"),
            *map(_by_images, ("100", "200", "500", "1000", "2000")),
            *(_by_images("1000", trim) for trim in ("0.01", "0.05")),
        ],
    ),
    "int8_imagenette": View(
        csv="int8",
        by=("trained_by", "weights"),
        where={"data": "imagenette"},
        columns=[
            *("trained_by", "weights", _FLOAT),
            *(int8_column("untrimmed", trim="0.0"), int8_column("trimmed by 1%", trim="0.01")),
        ],
    ),
    "int8_halves": View(
        csv="int8_layers",
        by=("trained_by", "weights", "images"),
        columns=[
            *("trained_by", "weights", "images"),
            *(
                number("agreement_alone", f"{half} alone", "{:.1f}", layer=half)
                for half in ("all weights", "all inputs")
            ),
            Column("accuracy, both", lambda line: spread(line.rows[:1], "int8_accuracy")),
        ],
    ),
    "int8_onnxruntime": View(
        csv="int8",
        where={**_CIFAR, "backend": "onnxruntime"},
        columns=["trained_by", "seed", "weights", "calibrator", _FLOAT, _INT8],
    ),
    "int8_qat": View(
        csv="int8",
        where={**_CIFAR, "method": "qat"},
        columns=["trained_by", "epochs", "form", "seed", "qat_epochs", text("qat_lr", "lr"), _FLOAT, _INT8],
    ),
    "int8_speed": View(
        columns=[
            *("model", "backend"),
            *(text(f"speed_{name}", name) for name in ("batch", "size", "threads", "hardware")),
            *(number("float_eager", "float, eager"), number("float_compiled", "compiled"), number("int8", "INT8")),
            Column("INT8 / eager", lambda line: f"{float(line['int8']) / float(line['float_eager']):.2f}"),
        ],
    ),
    "kernels": View(columns=["run", "kernel", *map(_kernel, POSITIONS)]),
}
