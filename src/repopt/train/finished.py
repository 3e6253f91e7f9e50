"""A finished run, to be used: its model, its recipe, its data, its accuracy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from repopt.data import DataSet, EvalBatches, load_data
from repopt.gpu import allow_tf32
from repopt.models import create_model
from repopt.models.saved import read_saved
from repopt.train.distributed import joined
from repopt.train.evaluation import Score, evaluate
from repopt.train.recipe import Recipe, with_fields


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run's model, with what it needs to be used.

    Attributes:
        model: in eval mode.
        config: the model's name and options, classes, mean, std and size.
    """

    model: nn.Module
    config: dict[str, Any]


def load_run(folder: str | Path) -> Trained:
    """The model of a finished run."""
    folder = Path(folder)
    return Trained(model=create_model(folder).eval(), config=read_saved(folder).config)


def run_recipe(folder: str | Path) -> Recipe:
    """The recipe that a run was trained by."""
    return with_fields(Recipe(), read_json(Path(folder), "recipe.json"), str(Path(folder, "recipe.json")))


def run_data(folder: str | Path, data: str | None = None, *, limit: int | None = None) -> DataSet:
    """A run's own data, or other data at the size of its images."""
    size = run_recipe(folder).size
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if data is not None:
        return load_data(data, size=size, limit=limit)
    info = read_json(Path(folder), "run.json")
    kept = info["limit"] if limit is None else limit
    try:
        return load_data(info["data"], size=size, limit=kept, broken=info["broken"])
    except (OSError, ValueError) as error:
        raise ValueError(f"the run's own data cannot be loaded ({error}): give --data") from error


def check_data(trained: Trained, data: DataSet) -> None:
    """Raises unless the data's images and classes are the model's."""
    for what, given, wanted in (
        ("channels", data.channels, trained.config["options"]["in_chans"]),
        ("classes", len(data.classes), len(trained.config["classes"])),
    ):
        if given != wanted:
            raise ValueError(f"{data.name!r} has {given} {what} and the run {wanted}: give data like its own")


def image_format(trained: Trained) -> dict[str, Any]:
    """How batches must be made for the model, at the size that it is evaluated and deployed at."""
    config = trained.config
    size = config.get("eval_size") or config["size"]
    return {"size": size, "mean": tuple(config["mean"]), "std": tuple(config["std"])}


def evaluate_run(
    folder: str | Path,
    data: str | None = None,
    *,
    sizes: Sequence[int] = (),
    device: str = "auto",
    limit: int | None = None,
) -> dict[int, Score]:
    """Evaluates a finished run, at one or several sizes of the images.

    Args:
        folder: the run.
        data: the run's own unless given.
        sizes: sides of the images; the run's own unless given.
        device: `auto`, `cpu` or `cuda`.
        limit: keep that many images.
    """
    trained, recipe = load_run(folder), run_recipe(folder)
    found = run_data(folder, data, limit=limit)
    check_data(trained, found)
    with joined(device) as (world, chosen):
        allow_tf32(recipe.precision != "fp32")
        model = trained.model.to(chosen)
        scores = {}
        own = image_format(trained)
        for size in sizes or (own["size"],):
            batches = EvalBatches(
                found.val,
                batch_size=recipe.eval_batch,
                device=chosen,
                rank=world.rank,
                world_size=world.size,
                workers=recipe.workers,
                **{**own, "size": size},
            )
            scores[size] = evaluate(model, batches, recipe, device=chosen, world=world)
    return scores


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A file of a run."""
    if not (folder / name).exists():
        raise ValueError(f"{str(folder)!r} is no run: it holds no {name}")
    read: dict[str, Any] = json.loads((folder / name).read_text())
    return read
