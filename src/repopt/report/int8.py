"""The section about INT8: what each quantization of a run cost, and which layers it cost at."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from repopt.report.markup import cell, section, table
from repopt.report.wording import ABSENT

_NOTE = (
    "Float and INT8 on the same images. Speeds are of one machine's CPU in one run. SNR alone: of the logits with this "
    "layer, all weights or all inputs of layers alone in INT8; SNR: of the layer's own output with all layers in INT8."
)


def int8_section(folders: Sequence[Path]) -> str:
    """What `repopt quantize` has left in folders of the runs; nothing where it has not been."""
    found = [
        (folder.resolve().name, json.loads(path.read_text()))
        for folder in folders
        for path in sorted(folder.glob("*/quantized.json"))
    ]
    if not found:
        return ""
    names = [
        "run",
        "how",
        "float, %",
        "INT8, %",
        "drop",
        "float, MB",
        "INT8, MB",
        "eager, images/s",
        "compiled",
        "INT8",
    ]
    body = table(names, [_row(run, record) for run, record in found], numbers_from=2)
    for run, record in found:
        if record["layers"]:
            about = f"By layer: {escape(run)}, {escape(_how(record))}"
            body += f"<details><summary>{about}</summary>{_layers(record['layers'])}</details>"
    return section("INT8", body, note=_NOTE)


def _row(run: str, record: dict[str, Any]) -> list[str]:
    speeds = [record[way] for way in ("float_eager", "float_compiled", "int8")]
    return [
        cell(escape(run), head=True),
        cell(escape(_how(record))),
        *(cell(f"{record[name]:.2f}", number=True) for name in ("float_accuracy", "int8_accuracy", "drop")),
        *(cell(f"{record[name] / 1e6:.2f}", number=True) for name in ("float_bytes", "int8_bytes")),
        *(cell(ABSENT if speed is None else f"{speed:,.0f}", number=True) for speed in speeds),
    ]


def _how(record: dict[str, Any]) -> str:
    calibrated = f", {record['calibrator']}" if record["calibrator"] else ""
    calibrated += f", trimmed by {record['trim']:.0%}" if record.get("trim") else ""  # older files have no such entry
    weights = f"per-{record['weights']} weights"
    return f"{record['method'].upper()}{calibrated}, {weights}, {record['form']}, {record['backend']}"


def _layers(costs: list[dict[str, Any]]) -> str:
    names = ("agreement_alone", "snr_alone", "snr")
    rows = [
        [
            cell(f"<code>{escape(cost['layer'])}</code>", head=True),
            *(cell(ABSENT if cost[name] is None else f"{cost[name]:.1f}", number=True) for name in names),
        ]
        for cost in costs
    ]
    return table(["layer", "same class alone, %", "SNR alone, dB", "SNR, dB"], rows, numbers_from=1)
