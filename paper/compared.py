"""What `repopt compare` found on a GPU, as it wrote it: paper/results/compare-NAME.json, a file for each study."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paper.view import METHODS, Record, View, number


def studies(results: Path) -> dict[str, Mapping[str, Any]]:
    """{name: what was found}."""
    paths = sorted(results.glob("compare-*.json"))
    return {path.stem.partition("-")[2]: json.loads(path.read_text()) for path in paths}


def rows(results: Path) -> Iterator[Record]:
    """A row for each study and method."""
    for study, found in studies(results).items():
        for method in found["methods"]:
            yield {
                "study": study,
                "trained by": method_name(method),
                "lr": f"{method['lr']:g}",
                "seeds": str(len(method["accuracies"])),
                "accuracy": _with_error(method["accuracy"], method["standard_error"]),
                "INT8": _with_error(method["int8_accuracy"], method["int8_standard_error"]),
                **{column: str(method[column] or "") for column in ("images_per_second", "peak_bytes", "inference")},
            }


def method_name(method: Mapping[str, Any]) -> str:
    name: str = method["name"]
    return METHODS.get(name, name)


def _with_error(value: float | None, error: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if error is None else f"{value:.2f} ± {error:.2f}"


VIEW = View(
    columns=[
        *("trained by", "lr", "seeds", "accuracy", "INT8"),
        number("images_per_second", "training, images/s"),
        number("peak_bytes", "GB", "{:.1f}", 1e9),
        number("inference", "inference, images/s"),
    ],
)
