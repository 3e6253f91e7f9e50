"""Finished runs: their model, their data, and what they score."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from repopt.data import DataSet, EvalBatches, load_data
from repopt.data.datasets import is_same_folder, kind_of
from repopt.data.images import balanced, together
from repopt.device import arithmetic
from repopt.files import read_as
from repopt.models import create_model
from repopt.models import load_checkpoint as load_weights
from repopt.models.saved import CONFIG, read_saved
from repopt.plans.wording import counted
from repopt.train.best_weights import BEST
from repopt.train.distributed import joined
from repopt.train.recipe import BOUNDS, EARLIER, Recipe, with_fields
from repopt.train.records import RunConfig, read_info, read_json
from repopt.train.step import Score, evaluate


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run's model, and what its inputs and outputs are.

    Attributes:
        model: in eval mode.
        config: the model's name and options, classes, mean, std and size.
    """

    model: nn.Module
    config: dict[str, Any]


def load_run(folder: str | Path, *, best: bool = False, trust: bool = False) -> Trained:
    """The model of a finished run.

    Args:
        folder: the run.
        trust: import its `package.module:factory`, if it is such a model. It can execute code.
        best: take the weights of the epoch with the highest validation accuracy instead of the last one's.
    """
    folder = Path(folder)
    saved = read_saved(folder)
    read_as(folder / CONFIG, RunConfig)
    model = create_model(folder, trust=trust)
    model.eval()
    if best:
        if not (folder / BEST).exists():
            raise ValueError(
                f"the run in {str(folder)!r} has no {BEST}, as an earlier version wrote it: leave --best out"
            )
        load_weights(model, folder / BEST)
    return Trained(model=model, config=saved.config)


def run_recipe(folder: str | Path) -> Recipe:
    """The recipe of a run; a field that this version does not know is an error, as it would train differently."""
    return with_fields(Recipe(**EARLIER), read_json(Path(folder), "recipe.json"), str(Path(folder, "recipe.json")))


def run_data(
    folder: str | Path, data: str | None = None, *, limit: int | None = None, eval_size: int | None = None
) -> DataSet:
    """A run's own data, or other data at the size of its images; `eval_size` is the run's own unless given.

    A folder of other data may hold some of the run's classes alone.
    """
    recipe = run_recipe(folder)
    size, eval_size = recipe.size, eval_size or recipe.eval_size
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    info = read_info(folder)
    if data is not None:
        found = _other_data(data, folder, size=info.image_size, limit=limit, broken=info.broken, eval_size=eval_size)
        own = is_same_folder(data, info.data)
    else:
        limit, own = info.limit if limit is None else limit, True
        try:
            found = load_data(info.data, size=size, limit=limit, broken=info.broken, eval_size=eval_size)
        except (OSError, ValueError) as error:
            raise ValueError(f"the run's own data cannot be loaded ({error}): give --data") from error
    if own and found.held_out != info.held_out:  # of images that the run was trained on, the accuracy says nothing
        raise ValueError(
            f"{info.data!r} has changed, and its validation images are not those that were held out for the run: bring "
            "the files back, or give --data other images than the run was trained on"
        )
    return found


def _other_data(data: str, folder: str | Path, **how: Any) -> DataSet:
    """Data whose labels are of the classes that a finished run tells apart."""
    classes = read_as(Path(folder) / CONFIG, RunConfig).classes if kind_of(data)[0] == "folder" else None
    return load_data(data, classes=classes, **how)


def check_data(trained: Trained, data: DataSet) -> None:
    """Raises unless the data's images and classes are the model's."""
    for what, given, wanted in (
        ("channels", data.channels, len(trained.config["mean"])),
        ("classes", len(data.classes), len(trained.config["classes"])),
    ):
        if given != wanted:
            raise ValueError(f"{data.name!r} has {given} {what} and the run {wanted}: give data like the run's own")
    for mine, own in zip(data.classes, trained.config["classes"], strict=True):
        if mine != own:
            raise ValueError(f"{data.name!r} has the class {mine!r} where the run has {own!r}: name it as the run does")


def image_format(trained: Trained) -> dict[str, Any]:
    """Size, share, mean and std of the batches that the model is evaluated and deployed with."""
    config = trained.config
    size = config.get("eval_size") or config["size"]
    return {"size": size, "share": config.get("eval_share"), "mean": tuple(config["mean"]), "std": tuple(config["std"])}


def evaluate_run(
    folder: str | Path,
    data: str | None = None,
    *,
    sizes: Sequence[int] = (),
    device: str = "auto",
    limit: int | None = None,
    trust: bool = False,
    best: bool = False,
) -> dict[int, Score]:
    """Evaluates a finished run, at one or several sizes of the images.

    Args:
        folder: the run.
        data: the run's own unless given. A folder without val/ counts whole, unless it is the run's own: then what was
            held out of it counts.
        sizes: sides of the images; the run's own unless given.
        device: `auto`, `cpu` or `cuda`.
        limit: keep that many images.
        trust: as `load_run` takes it.
        best: evaluate the weights of the run's best epoch instead of the last one's.
    """
    if bad := [size for size in sizes if size not in BOUNDS["size"]]:
        raise ValueError(f"the side of the images must be {BOUNDS['size']}, not {bad[0]}")
    trained, recipe = load_run(folder, best=best, trust=trust), run_recipe(folder)
    own = image_format(trained)
    least, asked = max(trained.config["size"], own["size"]), sizes or (own["size"],)
    # files are decoded at each larger side; a smaller one is made of what the training was evaluated on
    sides = sorted({max(least, size) for size in asked})
    found = {side: _evaluated(trained, folder, data, limit, side) for side in sides}
    with joined(device) as (world, chosen), arithmetic(tf32=recipe.precision != "fp32"):
        digests = " ".join(each.digest[:12] for each in found.values())
        images = max(len(each.val) for each in found.values())  # as many at each side
        world.check_alike({"sizes": sizes, "images": images, "the digest of the data": digests, **own})
        model = trained.model.to(chosen)
        scores = {}
        for size in asked:
            batches = EvalBatches(
                found[max(least, size)].val,
                batch_size=recipe.eval_batch,
                device=chosen,
                rank=world.rank,
                world_size=world.size,
                workers=recipe.workers,
                **{**own, "size": size},
            )
            scores[size] = evaluate(model, batches, recipe, device=chosen, world=world)
    return scores


def _evaluated(trained: Trained, folder: str | Path, data: str | None, limit: int | None, side: int) -> DataSet:
    """The data of which the validation split is evaluated on, with files decoded at this side."""
    found = run_data(folder, data, limit=limit, eval_size=side)
    check_data(trained, found)
    info = read_info(folder)
    if data is None or found.held_out is None:
        return found
    if found.held_out == info.held_out:  # of the run's own images, those that it was not trained on
        if limit is None and found.digest != info.data_digest:  # that of fewer images is always another
            warnings.warn(
                f"{data!r} has the file names of the run's own data, so only {counted(len(found.val), 'image')} that "
                "the run held out are counted: name the files of other images differently",
                stacklevel=4,  # evaluate_run's caller
            )
        return found
    # it is evaluated on whole, and nothing held out
    found = _other_data(data, folder, size=side, limit=limit, broken=info.broken)
    every = together(found.train, found.val)
    return replace(found, val=every if limit is None else every.take(balanced(every.labels, limit)))
