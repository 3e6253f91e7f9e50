"""A model in a folder: config.json says which one it is and with which options, model.safetensors holds its weights.

A finished run is such a folder, and so is what `repopt export --format safetensors` writes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a folder says of its model.

    Attributes:
        config: as it is written: the model's name and options, and what else was saved with it.
        weights: the file of the weights.
    """

    config: dict[str, Any]
    weights: Path

    @property
    def model(self) -> str:
        return str(self.config["model"])

    @property
    def options(self) -> dict[str, Any]:
        return tuples(self.config["options"])


def read_saved(folder: Path) -> Saved:
    """Reads what a folder says of its model.

    Raises:
        ValueError: there is no model in the folder, or none that can be read.
    """
    weights, config = folder / WEIGHTS, folder / CONFIG
    if not weights.exists():
        state = "is not finished" if (folder / "recipe.json").exists() else "is no run"
        raise ValueError(f"{str(folder)!r} {state}: it holds no {WEIGHTS}")
    if not config.exists():
        raise ValueError(f"{str(folder)!r} holds weights but no {CONFIG} that says of which model they are")
    try:
        read = json.loads(config.read_text())
    except ValueError as error:
        raise ValueError(f"{str(config)!r} is not JSON ({error})") from error
    if not isinstance(read, dict) or not isinstance(read.get("options"), dict) or "model" not in read:
        raise ValueError(f"{str(config)!r} is not of a model of repopt: it must hold a 'model' and its 'options'")
    return Saved(config=read, weights=weights)


def tuples(options: dict[str, Any]) -> dict[str, Any]:
    """Options as they were before JSON, which has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
