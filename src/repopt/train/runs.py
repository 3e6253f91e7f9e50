"""A run is a folder: what was asked for, what came out, and enough to resume or to report.

recipe.json, run.json     the resolved recipe; model, method, data, hardware, versions, seed, date
metrics.jsonl             one line per epoch
scales.jsonl              the mean of each branch's scales after each epoch, for a search or scales that are learned
checkpoint.pt             the last state, to resume from; checkpoint.previous.pt is the one before
scales.safetensors        of RepOpt from the start; of a search, or scales that are learned, when it is done
best.safetensors          the weights of the epoch with the highest validation accuracy
model.safetensors, model_ema.safetensors, config.json, summary.json, report.html      when it is done
tensorboard/              where tensorboard is installed

`RunFolder` writes them; `repopt.train.records` says what each holds, and reads it. Nothing is ever lost: a file is
written beside the last one, flushed to the disk, and takes its name in one move.
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout
from torch import nn

from repopt.data import DataSet, EvalBatches, load_data
from repopt.data.datasets import is_same_folder
from repopt.data.images import balanced, together
from repopt.device import arithmetic
from repopt.files import read_as, read_lines_as, remove_unfinished, write_json, write_text
from repopt.models import create_model
from repopt.models import load_checkpoint as load_weights
from repopt.models.saved import CONFIG, read_saved
from repopt.plans.wording import counted
from repopt.train.best_weights import BEST
from repopt.train.checkpoint import CHECKPOINT, PREVIOUS, RunState, has_checkpoint, load_checkpoint, save_checkpoint
from repopt.train.distributed import joined
from repopt.train.recipe import BOUNDS, EARLIER, Recipe, with_fields
from repopt.train.records import EpochRecord, RunConfig, check_epochs, read_info, read_json
from repopt.train.step import Score, evaluate

__all__ = [
    "RunFolder",
    "Trained",
    "check_data",
    "evaluate_run",
    "image_format",
    "load_run",
    "read_json",
    "run_data",
    "run_recipe",
]

# results that a new run must not overwrite
_RESULTS = (
    "metrics.jsonl",
    "scales.jsonl",
    CHECKPOINT,
    PREVIOUS,
    "model.safetensors",
    "model_ema.safetensors",
    BEST,
    "scales.safetensors",
    "config.json",
    "summary.json",
)


class RunFolder:
    """The folder of a run, held by one process at a time.

    Args:
        path: the folder, which is made.
        resume: continue the run that is there.

    Attributes:
        origin: the run, as `repopt.train.checkpoint.read_origin` gives it; checkpoints carry it.

    Raises:
        ValueError: there is a run already, or none to resume, or another process is training in it.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        self.origin: Mapping[str, Any] | None = None
        _check_free(path, resume=resume)  # before anything is made
        self._made = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        self._inode = _inode(path)
        self._lock = _locked(path)
        try:
            self._check_place()
            _check_free(path, resume=resume)  # again, now that no other process can change it
            self._before = set(os.listdir(path))
            for name in ("run.json", "recipe.json", "report.html", *_RESULTS):  # of a process that was killed
                remove_unfinished(path / name)
        except BaseException:
            self.close()
            raise

    def forget_start(self) -> None:
        """Removes what the start of a run added, if the run came to nothing: it would block the next start."""
        if _inode(self.path) == self._inode and not has_checkpoint(self.path) and not self.lines("metrics.jsonl"):
            for name in {"run.json", "recipe.json", *_RESULTS} - self._before:
                (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Releases the folder, and removes it if this run made it and wrote nothing to it; its new parents too."""
        own = self._made and _inode(self.path) == self._inode
        if own and [path.name for path in self.path.iterdir()] == [".lock"]:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # of a parent that holds something by now
                for parent in self._made[1:]:
                    parent.rmdir()
        self._lock.release()

    def _check_place(self) -> None:
        """Raises if the path leads to another folder than the one that is locked, where another run may be."""
        if _inode(self.path) != self._inode:
            raise ValueError(
                f"{str(self.path)!r} was moved, removed or replaced while a run was training in it: nothing more is "
                "written; bring it back and give --resume"
            )

    def save(self, state: Mapping[str, Any]) -> None:
        """Writes a checkpoint."""
        self._check_place()
        save_checkpoint(self.path, state, self.origin)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint that is whole, or None where nothing was saved yet."""
        return load_checkpoint(self.path, device, self.origin, RunState)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file in one move."""
        self._check_place()
        write_json(self.path / name, content)

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Appends a line to a .jsonl file."""
        self._check_place()
        with (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The records of a .jsonl file, each of an epoch; a torn last line is left out."""
        read_lines_as(self.path / name, EpochRecord)
        return read_lines_as(self.path / name, dict[str, Any])

    def last_record(self, epoch: int) -> dict[str, Any]:
        """What a run that had ended before recorded of its last epoch, with the figures that a summary needs."""
        last = [record for record in self.lines("metrics.jsonl") if record["epoch"] == epoch][-1]
        for name in ("val_accuracy", "images_per_second"):
            if last.get(name) is None:
                raise ValueError(
                    f"{str(self.path / 'metrics.jsonl')!r} has no {name} for epoch {epoch}, so the run cannot end "
                    "there: give it more --epochs"
                )
        return last

    def forget_after(self, epoch: int) -> None:
        """Drops the records of later epochs, which will be trained again.

        Raises:
            ValueError: the record of an epoch up to this one is lost.
        """
        check_epochs(self.path, [record["epoch"] for record in self.lines("metrics.jsonl")], epoch)
        for name in ("metrics.jsonl", "scales.jsonl"):
            kept = [record for record in self.lines(name) if record["epoch"] <= epoch]
            if (self.path / name).exists():
                write_text(self.path / name, "".join(json.dumps(record) + "\n" for record in kept))


def _check_free(path: Path, *, resume: bool) -> None:
    """Raises unless a run can be started in the folder, or resumed."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{str(path)!r} is a file: give --out a folder")
    started = (path / "recipe.json").exists()
    if started and not resume:
        raise ValueError(f"there is a run in {str(path)!r} already: give --resume to go on with it, or another --out")
    if resume and not started:
        raise ValueError(f"there is no run in {str(path)!r} to resume: leave --resume out to start one")
    for name in (*_RESULTS, "tensorboard"):
        if (path / name).is_symlink() and not (path / name).exists():
            raise ValueError(f"{str(path / name)!r} is a symbolic link to nothing: remove it")
    # a run starts with run.json, goes on with its scales and ends its start with recipe.json: if it was killed in
    # between, these scales are a copy
    copied = {"scales.safetensors"} if (path / "run.json").exists() else set()
    taken = [name for name in _RESULTS if (path / name).exists() and name not in copied]
    if taken and not started:
        raise ValueError(f"{str(path)!r} holds {taken[0]}, which belongs to no run: give another --out")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _locked(path: Path) -> BaseFileLock:
    """The lock of a run folder, taken."""
    file = path / ".lock"
    if file.is_symlink():  # older versions of filelock would follow it
        raise ValueError(f"{str(file)!r} is a symbolic link, which repopt never makes: remove it")
    lock = FileLock(file, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"another process is training in {str(path)!r}: wait for it, or give another --out") from error
    return lock


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
    model = create_model(folder, trust=trust).eval()
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
    """A run's own data, or other data at the size of its images; `eval_size` is the run's own unless given."""
    recipe = run_recipe(folder)
    size, eval_size = recipe.size, eval_size or recipe.eval_size
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    info = read_info(folder)
    if data is not None:
        found = load_data(data, size=info.image_size, limit=limit, broken=info.broken, eval_size=eval_size)
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
    found = load_data(data, size=side, limit=limit, broken=info.broken)
    every = together(found.train, found.val)
    return replace(found, val=every if limit is None else every.take(balanced(every.labels, limit)))
