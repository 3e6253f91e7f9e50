"""A run is a folder: what was asked for, what came out, and enough to resume or to report.

recipe.json, run.json     the resolved recipe; model, method, data, hardware, versions, seed, date
metrics.jsonl             one line per epoch
scales.jsonl              for a search, the mean of each branch's scales after each epoch
checkpoint.pt             the last state, to resume from
scales.safetensors        of RepOpt from the start, of a search when it is done
model.safetensors, model_ema.safetensors, config.json, summary.json, report.html      when it is done
tensorboard/              where tensorboard is installed

`RunFolder` writes them; `repopt.train.records` says what each holds, and reads it. Nothing is ever lost: a file is
written beside the last one, flushed to the disk, and takes its name in one move.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from repopt.data import DataSet, EvalBatches, load_data
from repopt.device import allow_tf32
from repopt.files import UNFINISHED, replacing
from repopt.models import create_model
from repopt.models.saved import read_saved
from repopt.train.distributed import joined
from repopt.train.recipe import Recipe, with_fields
from repopt.train.records import read_info, read_json
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

CHECKPOINT = "checkpoint.pt"

# results that a new run must not overwrite
_RESULTS = (
    "metrics.jsonl",
    "scales.jsonl",
    CHECKPOINT,
    "model.safetensors",
    "model_ema.safetensors",
    "scales.safetensors",
    "config.json",
    "summary.json",
)


class RunFolder:
    """The folder of a run, held by one process at a time.

    Args:
        path: the folder, which is made.
        resume: continue the run that is there.

    Raises:
        ValueError: there is a run already, or none to resume, or another process is training in it.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"{str(path)!r} is a file: give --out a folder")
        started = (path / "recipe.json").exists()
        if started and not resume:
            raise ValueError(
                f"there is a run in {str(path)!r} already: give --resume to go on with it, or another --out"
            )
        if resume and not started:
            raise ValueError(f"there is no run in {str(path)!r} to resume: leave --resume out to start one")
        # a run starts by writing run.json and ends its start with recipe.json: in between, nothing is worth keeping
        taken = [] if started or (path / "run.json").exists() else [name for name in _RESULTS if (path / name).exists()]
        if taken:
            raise ValueError(f"{str(path)!r} holds {taken[0]}, which belongs to no run: give another --out")
        self._made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / ".lock", timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ValueError(
                f"another process is training in {str(path)!r}: wait for it, or give another --out"
            ) from error

    def close(self) -> None:
        """Releases the folder, and removes it if this run made it and wrote nothing to it."""
        if self._made and self.path.is_dir() and [path.name for path in self.path.iterdir()] == [".lock"]:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file in one move."""
        with replacing(self.path / name) as path:
            path.write_text(json.dumps(content, indent=2) + "\n")

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Appends a line to a .jsonl file."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The records of a .jsonl file, up to the first line that is torn or broken."""
        path, records = self.path / name, []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records

    def forget_after(self, epoch: int) -> None:
        """Drops the records of later epochs, which will be trained again."""
        for name in ("metrics.jsonl", "scales.jsonl"):
            kept = [record for record in self.lines(name) if record["epoch"] <= epoch]
            if (self.path / name).exists():
                with replacing(self.path / name) as path:
                    path.write_text("".join(json.dumps(record) + "\n" for record in kept))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run's model, and what its inputs and outputs are.

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
    """The recipe of a run; a field that this version does not know is an error, as it would train differently."""
    return with_fields(Recipe(), read_json(Path(folder), "recipe.json"), str(Path(folder, "recipe.json")))


def run_data(folder: str | Path, data: str | None = None, *, limit: int | None = None) -> DataSet:
    """A run's own data, or other data at the size of its images."""
    size = run_recipe(folder).size
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if data is not None:
        return load_data(data, size=size, limit=limit)
    info = read_info(folder)
    try:
        return load_data(info.data, size=size, limit=info.limit if limit is None else limit, broken=info.broken)
    except (OSError, ValueError) as error:
        raise ValueError(f"the run's own data cannot be loaded ({error}): give --data") from error


def check_data(trained: Trained, data: DataSet) -> None:
    """Raises unless the data's images and classes are the model's."""
    for what, given, wanted in (
        ("channels", data.channels, trained.config["options"]["in_chans"]),
        ("classes", len(data.classes), len(trained.config["classes"])),
    ):
        if given != wanted:
            raise ValueError(f"{data.name!r} has {given} {what} and the run {wanted}: give data like the run's own")


def image_format(trained: Trained) -> dict[str, Any]:
    """Size, mean and std of the batches that the model is evaluated and deployed with."""
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
        own = image_format(trained)
        world.check_alike(
            {"sizes": sizes, "images": len(found.val), "the digest of the data": found.digest[:12], **own}
        )
        allow_tf32(recipe.precision != "fp32")
        model = trained.model.to(chosen)
        scores = {}
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


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Writes the state of a run, in place of the last one."""
    path = folder / CHECKPOINT
    try:
        with replacing(path) as unfinished:
            torch.save(state, unfinished)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError where the disk is full
        kept = "the last one is kept" if path.exists() else "there is none yet"
        raise OSError(f"the checkpoint could not be written to {str(path)!r} ({error}); {kept}") from error
    return path


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The state that a run was left in, or None where nothing was written yet."""
    path = folder / CHECKPOINT
    for name in ("run.json", "recipe.json", *_RESULTS):  # of a process that was killed while it wrote
        (folder / f"{UNFINISHED}{name}").unlink(missing_ok=True)
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        first_line = str(error).partition("\n")[0]  # torch adds advice on how to read what one trusts
        raise ValueError(f"the checkpoint {str(path)!r} cannot be read ({first_line})") from error
    return state


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the random number generators that models draw from."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
