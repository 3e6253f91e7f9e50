"""Table 8 and appendix C's first table: what INT8 costs by calibration, and by a short training."""

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from paper.claims import Claim
from paper.quantized import METHODS, SIZE, trained_for_int8
from paper.scope import Scope
from paper.summaries import INITS, NAMES, dates, difference, markdown, matching, mean, spread
from paper.tables import Record, Row, Table
from paper.workshop import Workshop
from repopt.quantize import Int8, quantize_run
from repopt.train.methods import Method

_PTQ = [("channel", "histogram"), ("channel", "minmax"), ("tensor", "histogram"), ("tensor", "minmax")]
_QAT_EPOCHS = 5
_FIGURES = (
    *("method", "weights", "calibrator", "qat_epochs", "qat_lr", "form"),
    *("float_accuracy", "int8_accuracy", "drop", "images", "val_images", "epochs", "kernel"),
    *("hardware", "threads", "python", "torch", "date"),
)


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for trained_by in METHODS[:1] if scope.quick else METHODS:
            yield _row(scope, trained_by, seed)


def _row(scope: Scope, trained_by: Method, seed: int) -> Row:
    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        run = trained_for_int8(scope, workshop, trained_by, seed)
        images = 16 if scope.quick else 1000
        settings: list[tuple[str, Int8]] = [
            ("ptq", Int8(weights=weights, calibrator=calibrator, images=images))  # type: ignore[arg-type]
            for weights, calibrator in (_PTQ[:1] if scope.quick else _PTQ)
        ]
        settings += [] if scope.quick else [("qat", Int8(images=images))]
        lines = []
        for method, setting in settings:
            out = run / "int8"
            shutil.rmtree(out, ignore_errors=True)  # of an interrupted row
            with workshop.sharing():
                found = quantize_run(
                    run,
                    method=method,  # type: ignore[arg-type]
                    setting=setting,
                    limit=scope.limit,
                    out=out,
                    epochs=_QAT_EPOCHS,
                    device=workshop.chosen_device,
                    quiet=workshop.quiet,
                )
            lines.append({column: found.record[column] for column in _FIGURES})
            shutil.rmtree(out)
        return lines

    key = {"trained_by": trained_by, "model": scope.model(SIZE), "seed": seed}
    return Row(key=key, measure=measure, minutes=2.5)


def _part(rows: Sequence[Record]) -> list[str]:
    first = rows[0]
    lines = [
        "The paper: B1 on ImageNet, 78.47 to 75.89 by calibration and 78.24 by quantization-aware training (QAT); "
        "RepVGG-B1, 78.41 in its Table 2, to 54.55. It does not say whether weights had a step a channel or one for "
        "the whole tensor. "
        f"Ours: {first['model']} on CIFAR-100, which RepOpt's scales were searched on too, {first['epochs']} epochs, "
        f"{int(first['val_images']):,} test images, {first['images']} images to calibrate, QAT of {_QAT_EPOCHS} epochs "
        f"where the paper has 10, {first['hardware']}, {dates(rows)}.",
        "",
        *costs(rows),
        "",
        "In brackets: points lost, mean ± deviation over the seeds. A negative loss is a gain. What RepVGG loses by "
        "calibration depends on the images that calibrate: [INT8](quantization.md#what-to-expect).",
    ]
    told = _comparison(rows)
    return [*lines, "", told] if told else lines


def costs(rows: Sequence[Record]) -> list[str]:
    """What INT8 costs each method, in each setting."""
    cells = []
    for trained_by in METHODS:
        its = matching(rows, trained_by=trained_by)
        if not its:
            continue
        ptq = [matching(its, method="ptq", weights=weights, calibrator=calibrator) for weights, calibrator in _PTQ]
        qat = matching(its, method="qat")
        seeds = len({row["seed"] for row in its})
        init = INITS[its[0]["kernel"]]
        floats = spread(ptq[0], "float_accuracy")
        cells.append((NAMES[trained_by], init, seeds, floats, *map(_cell, (*ptq, qat))))
    columns = {"trained by": "<", "init": "<", "seeds": ">", "float": ">"}
    columns |= {f"per-{weights} weights, {calibrator}": ">" for weights, calibrator in _PTQ}
    return markdown({**columns, "QAT, per-channel weights": ">"}, cells)


def _cell(rows: Sequence[Record]) -> str:
    return f"{mean(rows, 'int8_accuracy'):.2f} ({spread(rows, 'drop')})" if rows else ""


def _comparison(rows: Sequence[Record]) -> str | None:
    """The other methods' INT8 models beside RepOpt's."""
    settings = {"calibrated per channel": {"method": "ptq", "weights": "channel", "calibrator": "histogram"}}
    settings["after QAT"] = {"method": "qat"}
    told = []
    for words, wanted in settings.items():
        its = matching(rows, **wanted)
        ours = matching(its, trained_by="repopt")
        others = ((NAMES[name], matching(its, trained_by=name)) for name in METHODS if name != "repopt")
        gaps = [f"{name} {gap}" for name, found in others if (gap := difference(found, ours, "int8_accuracy"))]
        told += [f"{words}, {', '.join(gaps)}"] if gaps else []
    return f"INT8 accuracy less RepOpt's, ± standard error: {'; '.join(told)}." if told else None


def _calibrated(rows: Sequence[Record], trained_by: str) -> list[Record]:
    return matching(rows, trained_by=trained_by, method="ptq", weights="channel", calibrator="histogram")


def _claims(rows: Sequence[Record]) -> list[Claim]:
    gap = difference(_calibrated(rows, "repvgg"), _calibrated(rows, "repopt"), "int8_accuracy")
    text = "Table 8: calibrated to INT8, RepVGG is behind RepOpt (ours: CIFAR-100; how far depends on the images)"
    return [Claim(text=text, model=rows[0]["model"], paper=54.55 - 75.89, ours=gap)] if gap else []


def _verdict(rows: Sequence[Record]) -> str | None:
    found = {NAMES[name]: _calibrated(rows, name) for name in METHODS}
    told = [f"{name} {spread(its, 'drop')}, {len(its)} seeds" for name, its in found.items() if its]
    return (
        f"Points that INT8 costs by calibration, {rows[0]['model']}, CIFAR-100: {'; '.join(told)}. RepVGG's depend on "
        "the images that calibrate."
        if told
        else None
    )


TABLE = Table(
    name="table8",
    title="Table 8: INT8",
    keys=("trained_by", "model", "seed"),
    rows=_rows,
    part=_part,
    verdict=_verdict,
    claims=_claims,
    data=("cifar100",),
    figures=_FIGURES,
)
