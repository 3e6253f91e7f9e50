"""A model in a folder: config.json names it and its options, model.safetensors holds its weights.

A finished run is such a folder, and so is what `repopt export --format safetensors` writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from repopt.algebra.operators import is_linear_operator
from repopt.files import read_as

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What config.json must hold; it may hold more."""

    model: str
    options: dict[str, Any]
    biases: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A model's folder, read.

    Attributes:
        model: its name.
        options: what it was created with.
        biases: operators that have a bias, whether they were created with one or not.
        config: all of config.json.
        weights: the file of the weights.
    """

    model: str
    options: dict[str, Any]
    biases: list[str]
    config: dict[str, Any]
    weights: Path


def read_saved(folder: Path) -> Saved:
    """Reads the config of the model in a folder.

    Raises:
        ValueError: there is no model in the folder, or its config is corrupt.
    """
    weights, config = folder / WEIGHTS, folder / CONFIG
    if not weights.exists():
        state = "is not finished" if (folder / "recipe.json").exists() else "is not a run folder"
        raise ValueError(f"{str(folder)!r} {state}: it has no {WEIGHTS}")
    if not config.exists():
        raise ValueError(f"{str(folder)!r} holds weights but no {CONFIG} that names their model")
    read = read_as(config, ModelConfig)
    return Saved(
        model=read.model,
        options=tuples(read.options),
        biases=read.biases,
        config=read_as(config, dict[str, Any]),
        weights=weights,
    )


def give_biases_(model: nn.Module, names: list[str]) -> None:
    """Gives a bias of zeros to those of the named operators that have none; a backbone may end before some."""
    modules = dict(model.named_modules())
    left_out = getattr(model, "left_out", ())
    for name in (name for name in names if name not in left_out):
        operator = modules.get(name)
        if operator is None or not is_linear_operator(operator):
            raise ValueError(f"the model has no operator {name!r}, to which its {CONFIG} gives a bias")
        if operator.bias is None:
            operator.bias = nn.Parameter(operator.weight.new_zeros(len(operator.weight)))


def tuples(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they were before JSON turned their tuples into lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
