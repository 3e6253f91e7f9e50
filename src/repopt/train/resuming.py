"""Going on with a run: the job that its folder was started with, and whether that can still be trained."""

import dataclasses
from pathlib import Path
from typing import Any

from repopt.data import DataSet
from repopt.files import read_as
from repopt.models.references import check_trust
from repopt.models.saved import tuples
from repopt.plans.scales import Scales
from repopt.train.checkpoint import has_checkpoint
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.methods import LEARN, METHODS, Method
from repopt.train.notes import about_length
from repopt.train.recipe import Recipe
from repopt.train.records import RunInfo, RunSummary, read_info, read_json
from repopt.train.run_folder import RunFolder
from repopt.train.runs import run_recipe


def recorded_job(job: Job, out: Path, epochs: int | None = None, *, trust: bool) -> Job:
    """The job that a run folder was started with, for another number of epochs where that is given."""
    run, recipe = read_info(out), run_recipe(out)
    check_trust(run.model, out, trust=trust or run.model == job.model)
    recipe = recipe if epochs is None else dataclasses.replace(recipe, epochs=epochs)
    # without a checkpoint the run starts over, from the weights that it was given
    weights = None if run.weights is None or has_checkpoint(out) else Path(run.weights)
    return dataclasses.replace(
        job,
        method=_known_method(run.method, out),
        model=run.model,
        data=run.data,
        limit=run.limit,
        broken="skip" if job.broken == "skip" else run.broken,
        options=tuples(run.options),
        branches=run.branches,
        recipe=recipe,
        weights=weights,
        scales=starting_scales(out, run, recipe),
    )


def starting_scales(out: Path, run: RunInfo, recipe: Recipe) -> Scales | str | None:
    """Those that a run was started with, not those that it found."""
    if recipe.freeze_at:
        return LEARN
    file = out / "scales.safetensors"
    return Scales.load(file) if file.exists() and run.method != "search" else None


def _known_method(method: str, out: Path) -> Method:
    known = next((each for each in METHODS if each == method), None)
    if known is None:
        raise ValueError(
            f"the run in {str(out)!r} has the method {method!r}, which this version of repopt does not have"
        )
    return known


def summary_of_finished(out: Path, epochs: int) -> dict[str, Any] | None:
    """The summary of a finished run that has no checkpoint: training it again would overwrite its results."""
    if has_checkpoint(out) or not any((out / name).exists() for name in ("summary.json", "model.safetensors")):
        return None
    file = out / "summary.json"
    if not file.exists() or read_as(file, RunSummary).epochs != epochs:
        raise ValueError(f"the run in {str(out)!r} is finished and has no checkpoint to go on from: start another run")
    return read_json(out, file.name)


def check_same_images(job: Job, data: DataSet, folder: RunFolder | None) -> None:
    """Raises unless the images are those of the start; a run that now leaves out broken ones has the same files."""
    if folder is None:
        return
    run = read_info(folder.path)
    same_files = job.broken != run.broken and run.data_listing is not None and data.listing == run.data_listing
    if data.digest != run.data_digest and not same_files:
        raise ValueError(
            f"{data.name!r} holds other images than when the run in {str(folder.path)!r} was started: bring them back, "
            "or start another run"
        )


def record_length(job: Job, folder: RunFolder, trainer: Trainer) -> str | None:
    """Records another number of epochs, and returns what to say of it."""
    recipe, steps = read_json(folder.path, "recipe.json"), len(trainer.batches)
    if recipe["epochs"] != job.recipe.epochs:
        folder.write("recipe.json", {**recipe, "epochs": job.recipe.epochs})
    return about_length(recipe["epochs"], job.recipe, trainer.position.epoch * steps + trainer.position.step, steps)
