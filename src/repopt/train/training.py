"""From a job to a finished run: data, subject, loop, and the files that stay."""

import dataclasses
import hashlib
import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import repopt
from repopt.data import DataSet, load_data
from repopt.data.datasets import is_here
from repopt.device import commit, environment
from repopt.files import write_sealed
from repopt.models import list_models
from repopt.models import load_checkpoint as load_weights
from repopt.models.counting import parameters
from repopt.models.references import is_own
from repopt.optim.fingerprints import fingerprint
from repopt.plans.scales import Scales
from repopt.plans.wording import listed
from repopt.surgery.blocks import LinearAdditionBlock
from repopt.train.best_weights import finished_model
from repopt.train.checkpoint import read_origin
from repopt.train.distributed import World, joined
from repopt.train.job import Job, as_learned
from repopt.train.job_model import check_options, created, options_of
from repopt.train.loop import Trainer
from repopt.train.methods import LEARN, Subject, counterpart, make_subject, searched_scales
from repopt.train.notes import (
    about_batch,
    about_data,
    about_freeze,
    about_precision,
    about_processes,
    accuracy_of_guessing,
)
from repopt.train.progress import Clock
from repopt.train.recipe import on_cuda_unless_given, with_batch_for
from repopt.train.records import read_info, read_json
from repopt.train.resuming import check_same_images, record_length, recorded_job, summary_of_finished
from repopt.train.run_folder import RunFolder

_OF_BROKEN = ("broken", "data_digest", "data_listing", "train_images", "val_images")  # changed by `--broken skip`


def train_run(
    job: Job,
    out: str | Path,
    *,
    resume: bool = False,
    epochs: int | None = None,
    device: str = "auto",
    quiet: bool = False,
    trust: bool = False,
    notes: Sequence[str] = (),
    data: DataSet | None = None,
) -> dict[str, Any]:
    """Trains a job in a run folder, and returns its summary.

    Args:
        job: what to train; a resumed run takes method, model, data and recipe from its folder instead.
        out: the run folder.
        resume: go on where the run in the folder was left.
        epochs: where a resumed run ends; as many as it was started with unless given.
        device: `auto`, `cpu` or `cuda`.
        quiet: show no progress.
        trust: import the `package.module:factory` of the run that is resumed, unless the job names the same one.
        notes: to print once it is clear that the job can be trained.
        data: the job's data, where it is loaded already.
    """
    out = Path(out)
    job = job if resume else as_learned(job)
    with joined(device) as (world, chosen):
        folders: list[RunFolder] = []

        def start() -> tuple[Job, dict[str, Any] | None]:
            folders.append(RunFolder(out, resume=resume))
            if not resume:
                return job, None
            recorded = recorded_job(job, out, epochs, trust=trust)
            return recorded, summary_of_finished(out, recorded.recipe.epochs)

        # a resumed run's recipe is in its folder, which the first rank alone may see
        world.check_alike({"--resume": resume, **_given(job), **({} if resume else dataclasses.asdict(job.recipe))})
        try:
            recorded, summary = world.shared(start)
            folder = folders[0] if folders else None
            if summary is not None:
                _say(notes, quiet=quiet or folder is None)
                return summary
            return _train(recorded, data, folder, chosen, world, resume=resume, quiet=quiet, notes=notes)
        except BaseException:
            for folder in folders if not resume else ():
                folder.forget_start()
            raise
        finally:
            for folder in folders:
                folder.close()


def _train(
    job: Job,
    data: DataSet | None,
    folder: RunFolder | None,
    device: torch.device,
    world: World,
    *,
    resume: bool,
    quiet: bool,
    notes: Sequence[str | None],
) -> dict[str, Any]:
    clock = Clock()
    with clock.measure("data"):
        size, eval_size = job.recipe.size, job.recipe.eval_size
        if resume and data is None and not is_here(job.data):
            raise ValueError(
                f"the run's own data, {job.data!r}, is not here: bring it back, or resume the run in the folder where "
                "it was begun"
            )
        data = data or load_data(job.data, size=size, limit=job.limit, broken=job.broken, eval_size=eval_size)
    notes = [*notes, *about_data(data, job.limit)]
    if resume:
        world.shared(lambda: check_same_images(job, data, folder))
        if job.broken == "skip":  # which may leave fewer than a batch
            asked, job = job.recipe, _with_batch(job, data, world)
            notes.append(about_batch(asked.batch_size, job.recipe, data))
    else:
        asked = job.recipe
        job = _with_batch(job, data, world)
        notes += [about_batch(asked.batch_size, job.recipe, data), about_precision(job.recipe, device)]
        notes.append(about_freeze(job.recipe))
        check_options(job, data)
    subject = build(job, data, device)
    if not resume:
        notes += _about_branches(job, subject)
    world.check_alike(_made(data, subject))
    trainer = Trainer(subject, data, job.recipe, folder, device=device, world=world, clock=clock, quiet=quiet)
    subject = trainer.subject
    info = _info(job, data, subject, device, world)
    if folder is not None:
        if not resume:
            _write_start(job, subject, folder, info)
        folder.origin = read_origin(folder.path)
    # dropout draws from here: different units on each rank, whatever was drawn above
    torch.manual_seed(job.recipe.seed + world.rank)
    if resume:
        trainer.resume()
        if folder is not None:
            notes += [
                record_length(job, folder, trainer),
                about_freeze(job.recipe) if trainer.subject.searching else None,
            ]
            notes.append(about_processes(read_info(folder.path).processes, world.size))
        if folder is not None and read_info(folder.path).broken != job.broken:
            changed = {name: info[name] for name in _OF_BROKEN}
            folder.write("run.json", {**read_json(folder.path, "run.json"), **changed})
    _say(notes, quiet=quiet or folder is None)  # now that no error can make them moot
    summary = {**trainer.fit(), "guessing": accuracy_of_guessing(data.val.labels)}
    if folder is not None:
        if job.method == "search" or job.scales == LEARN:
            _save_searched(job, trainer.subject, folder, {**info, "val_accuracy": summary["val_accuracy"]})
        _write_model(job, data, trainer, folder)
        folder.write("summary.json", summary)
    return world.shared(lambda: summary)


def _say(notes: Sequence[str | None], *, quiet: bool) -> None:
    for note in notes:
        if note and not quiet:
            print(f"note: {note}")


def build(job: Job, data: DataSet, device: torch.device) -> Subject:
    """The job's subject, drawn from the recipe's seed, on the device."""
    if job.model not in list_models() and Path(job.model).is_dir():
        raise ValueError(
            f"{job.model!r} is a folder, but --model takes a model's name: give the name, and --weights the folder's "
            "model.safetensors"
        )
    torch.manual_seed(job.recipe.seed)
    model = created(job, data)
    if job.weights is not None:
        load_weights(model, job.weights)
    channels_last = on_cuda_unless_given(job.recipe.channels_last, device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(device=device, memory_format=layout)  # type: ignore[call-overload]
    drawn = job.weights is None
    return make_subject(job.method, model, job.recipe, scales=job.scales, drawn=drawn, branches=job.branches)


def _about_branches(job: Job, subject: Subject) -> list[str]:
    notes = [f"{name} has no branches, since {why}" for name, why in subject.left_out.items()]
    if subject.branches != job.branches:
        chosen = f"{job.model} declares no branches and gets those of {subject.branches!r}; --branches names others"
        notes.insert(0, chosen)
    if subject.redrawn and is_own(job.model):
        notes.append(
            f"{job.model} comes with weights of its own ({listed(subject.redrawn)}), which the method {job.method} "
            "draws anew: to keep trained ones, save them and give --weights"
        )
    return notes


def _with_batch(job: Job, data: DataSet, world: World) -> Job:
    """The job, with a batch no larger than the data."""
    return dataclasses.replace(job, recipe=with_batch_for(job.recipe, len(data.train), world.size))


def _given(job: Job) -> dict[str, object]:
    """What a rank was asked for; scales that were read already are compared with the plan."""
    plain = ("method", "model", "data", "weights", "limit", "broken", "options", "branches")
    scales = {"scales": job.scales} if isinstance(job.scales, str | Path) else {}
    return {**{name: getattr(job, name) for name in plain}, **scales}


def _made(data: DataSet, subject: Subject) -> dict[str, object]:
    """What a rank made of that; not the weights, which differ by rounding between processors, and which DDP shares."""
    layout = [(name, tuple(value.shape), str(value.dtype)) for name, value in subject.model.state_dict().items()]
    text = re.sub("0x[0-9a-f]+", "", f"{subject.model}{layout}")  # without addresses
    return {
        "training images": len(data.train),
        "validation images": len(data.val),
        "classes": f"{len(data.classes)}, digest {hashlib.sha256(repr(data.classes).encode()).hexdigest()[:12]}",
        "the digest of the data": data.digest[:12],
        "the digest of the model": hashlib.sha256(text.encode()).hexdigest()[:12],
        "the digest of the scales": None if subject.plan is None else fingerprint(subject.plan, "scales"),
        "repopt": repopt.__version__,
        "torch": torch.__version__,
    }


def _info(job: Job, data: DataSet, subject: Subject, device: torch.device, world: World) -> dict[str, Any]:
    # scales that are learned are soon frozen: what is trained then is the plain model
    trained = finished_model(subject.model) if job.scales == LEARN else subject.model
    return {
        "method": job.method,
        "model": job.model,
        "options": job.options,
        "branches": subject.branches,
        "data": job.data,
        "limit": job.limit,
        "broken": job.broken,
        "data_digest": data.digest,
        "data_listing": data.listing,
        "held_out": data.held_out,
        "train_images": len(data.train),
        "val_images": len(data.val),
        "image_size": job.recipe.size or data.size,
        "seed": job.recipe.seed,
        "kernel": job.recipe.kernel,
        "precision": job.recipe.precision,
        "weights": None if job.weights is None else str(job.weights.absolute()),
        "scales": str(job.scales) if isinstance(job.scales, str | Path) else None,
        "processes": world.size,
        "parameters": parameters(trained),
        "repopt": repopt.__version__,
        "commit": commit(),
        **environment(device),
    }


def _write_start(job: Job, subject: Subject, folder: RunFolder, info: dict[str, Any]) -> None:
    folder.write("run.json", {"id": uuid.uuid4().hex, **info})
    if subject.scales is not None:  # wherever they were read from, they are at hand to resume with
        subject.scales.save(folder.path / "scales.safetensors")
    folder.write("recipe.json", dataclasses.asdict(job.recipe))  # last: from now on the folder can be resumed


def _save_searched(job: Job, subject: Subject, folder: RunFolder, info: dict[str, Any]) -> None:
    """Writes the scales that a search, or the first part of a training, found, with their provenance."""
    provenance = {"run": json.dumps(info), "recipe": json.dumps(dataclasses.asdict(job.recipe))}
    Scales(searched_scales(subject), provenance).save(folder.path / "scales.safetensors")


def _write_model(job: Job, data: DataSet, trainer: Trainer, folder: RunFolder) -> None:
    """Writes the model, its moving average where there is one, and what it takes to load them."""
    blocks = [name for name, each in trainer.subject.model.named_modules() if isinstance(each, LinearAdditionBlock)]
    model = finished_model(trainer.subject.model)
    biases = [name for name in blocks if model.get_submodule(name).bias is not None]
    if trainer.ema is not None:
        write_sealed(folder.path / "model_ema.safetensors", finished_model(trainer.ema.module).state_dict())
    folder.write(
        "config.json",
        {
            "model": counterpart(job.model, job.method),
            "options": options_of(job, data),
            **({"biases": biases} if biases else {}),  # which branches with norms leave behind, where there was none
            "classes": data.classes,
            "mean": data.mean,
            "std": data.std,
            "size": job.recipe.size or data.size,
            "eval_size": job.recipe.eval_size,
            "eval_share": job.recipe.eval_share,
        },
    )
    write_sealed(folder.path / "model.safetensors", model.state_dict())  # last: now the run can be loaded
