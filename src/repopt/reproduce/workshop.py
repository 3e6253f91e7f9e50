"""Where rows are made: each training is done once, whichever tables ask for it, and goes on after an interruption.

A run's folder is named after all that decides it. Several processes may work at one table: a row, or a run that two
rows need, is claimed by a lock that the system takes back from a process that dies.
"""

import dataclasses
import fcntl
import gc
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from repopt.scales import Scales
from repopt.train.finished import read_json
from repopt.train.launch import Job, train_run
from repopt.train.loop import DivergedError


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A folder of runs, and where they are computed.

    Attributes:
        folder: of the runs.
        device: `auto`, `cpu` or `cuda`.
        quiet: show no progress.
    """

    folder: Path
    device: str = "auto"
    quiet: bool = True

    @property
    def chosen_device(self) -> torch.device:
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(auto if self.device == "auto" else self.device)

    def run(self, job: Job, *, weights: bool = False) -> Path:
        """The folder of the job's finished run, which is trained, or trained to its end, where it is not there.

        Args:
            job: what is trained.
            weights: keep the trained weights, which are large.
        """
        out = self.path(job)
        with self.claim(out.name, wait=True):
            kept = (out / "model.safetensors").exists()
            if (out / "summary.json").exists() and (kept or not weights):
                return out
            if (out / "summary.json").exists():  # finished without its weights: begin anew
                shutil.rmtree(out)
            _forget_compiled()
            train_run(job, out, resume=(out / "recipe.json").exists(), device=self.device, quiet=self.quiet)
            (out / "checkpoint.pt").unlink(missing_ok=True)
            if not weights:
                (out / "model.safetensors").unlink(missing_ok=True)
        return out

    def path(self, job: Job) -> Path:
        """Where the job's run is, or will be."""
        return self.folder / _name(job)

    def outcome(self, job: Job) -> dict[str, Any]:
        """What the job's run measured; that it diverged is an outcome too."""
        try:
            return figures_of(self.run(job))
        except DivergedError as error:
            return {**figures_of(self.path(job)), "outcome": str(error).partition(":")[0]}

    def searched(self, job: Job) -> Scales:
        """The scales that a search finds."""
        return Scales.load(self.run(job) / "scales.safetensors")

    @contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Holds what has a name; False where another process does and `wait` is not asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f".{name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True


def figures_of(run: Path) -> dict[str, Any]:
    """What a run measured, and on what; of one that did not finish, the latter alone."""
    info, recipe = read_json(run, "run.json"), read_json(run, "recipe.json")
    summary = read_json(run, "summary.json") if (run / "summary.json").exists() else {}
    return {
        **{name: summary.get(name) for name in ("val_accuracy", "images_per_second", "peak_memory_bytes")},
        "train_seconds": summary.get("seconds", {}).get("train"),
        "outcome": "finished",
        "parameters": info["parameters"],
        **{name: recipe[name] for name in ("epochs", "batch_size", "lr", "kernel", "identity", "precision")},
        "train_images": info["train_images"],
        "val_images": info["val_images"],
        "size": info["image_size"],
        "data_digest": info["data_digest"],
        **{name: info[name] for name in ("repopt", "hardware", "threads", "python", "torch", "date")},
    }


FIGURES = (
    *("val_accuracy", "images_per_second", "peak_memory_bytes", "train_seconds", "outcome", "parameters"),
    *("epochs", "batch_size", "lr", "kernel", "identity", "precision"),
    *("train_images", "val_images", "size", "data_digest"),
    *("repopt", "hardware", "threads", "python", "torch", "date"),
)


def _name(job: Job) -> str:
    """A name that differs wherever two jobs do."""
    about = dataclasses.asdict(dataclasses.replace(job, scales=None))
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    scales = Scales({}) if job.scales is None else job.scales
    assert isinstance(scales, Scales)
    for operator, branches in scales.items():
        for branch, scale in branches.items():
            digest.update(f"{operator}.{branch}".encode())
            digest.update(scale.double().numpy().tobytes())
    return f"{job.model}-{job.method}-{job.recipe.seed}-{digest.hexdigest()[:12]}"


def _forget_compiled() -> None:
    """What earlier runs of this process compiled and hold: the next one is measured as if it were the first."""
    if torch.cuda.is_available():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
