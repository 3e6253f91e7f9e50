"""Where scales come from, as their own file says it: the Hyper-Search that found them."""

import json
from dataclasses import dataclass
from typing import Any

from repopt.plans.scales import Scales


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """A Hyper-Search, as its scales remember it.

    Attributes:
        model: whose scales were searched.
        data: the kind of data set, without where it lay.
        data_digest: of its images.
        accuracy: of the search model, on the data's own test images.
        epochs: of the search.
        label_smoothing: of the search.
        clip: the largest norm of the search's gradients; None for no clipping.
        kernel: how the kernels started.
        seed: of the search.
        precision: of the search.
        hardware: that it ran on.
        torch: the version.
        repopt: the version.
        date: of the search.
    """

    model: str
    data: str
    data_digest: str
    accuracy: float
    epochs: int
    label_smoothing: float
    clip: float | None
    kernel: str
    seed: int
    precision: str
    hardware: str
    torch: str
    repopt: str
    date: str


def provenance(scales: Scales) -> Provenance | None:
    """Where scales come from; None for scales that no search of ours wrote."""
    if not {"run", "recipe"} <= set(scales.metadata):
        return None
    try:
        return _read(json.loads(scales.metadata["run"]), json.loads(scales.metadata["recipe"]))
    except (KeyError, TypeError, AttributeError, ValueError):  # metadata of another make
        return None


def _read(run: dict[str, Any], recipe: dict[str, Any]) -> Provenance:
    return Provenance(
        **{name: run[name] for name in ("model", "data_digest", "hardware", "torch", "repopt", "date")},
        **{name: recipe[name] for name in ("epochs", "label_smoothing", "clip", "kernel", "seed", "precision")},
        data=run["data"].partition(":")[0],
        accuracy=run["val_accuracy"],
    )
