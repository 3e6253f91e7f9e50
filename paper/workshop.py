"""Where rows are made: each training is done once, whichever tables ask for it, and goes on after an interruption.

Several processes may work at one table: a row, or a run that two rows need, is claimed by a file lock, which the system
takes back from a process that dies. Trainings may share the device; what is timed has it alone.
"""

import gc
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from repopt.device import chosen_device
from repopt.files import write_json
from repopt.plans.scales import Scales
from repopt.train.checkpoint import remove_checkpoints
from repopt.train.job import Job
from repopt.train.records import read_json
from repopt.train.stopping import DivergedError
from repopt.train.training import train_run


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A folder of runs, and where they are computed: on `auto`, `cpu` or `cuda`, quietly without progress."""

    folder: Path
    device: str = "auto"
    quiet: bool = True

    @property
    def chosen_device(self) -> torch.device:
        return chosen_device(self.device)

    def run(self, job: Job, *, weights: bool = False) -> Path:
        """The folder of the job's finished run, trained where that is missing; with its weights, which are large."""
        plain = self.folder / _name(job)
        kept = plain.with_name(f"{plain.name}-weights")
        with self.claim(plain.name, wait=True):
            ended = any((plain / name).exists() for name in ("summary.json", "diverged.json"))
            out = kept if weights or (not ended and (kept / "summary.json").exists()) else plain
            if not (out / "summary.json").exists():
                self._train(job, out)
            remove_checkpoints(out)
            if out == plain:
                (out / "model.safetensors").unlink(missing_ok=True)
        return out

    def _train(self, job: Job, out: Path) -> None:
        """Trains, or says again that this diverged: that is an outcome, and not to be tried until it passes."""
        diverged = out / "diverged.json"
        if diverged.exists():
            raise DivergedError(json.loads(diverged.read_text()))
        if torch.cuda.is_available():  # the memory of earlier runs; what they compiled serves this one, too
            gc.collect()
            torch.cuda.empty_cache()
        try:
            with self.sharing():
                train_run(job, out, resume=(out / "recipe.json").exists(), device=self.device, quiet=self.quiet)
        except DivergedError as error:
            # without the advice, which is for a run that one resumes
            reason = f"{'in the search, ' if job.method == 'search' else ''}{str(error).partition(':')[0]}"
            out.mkdir(exist_ok=True)  # a run that came to nothing leaves no folder
            write_json(diverged, reason)
            remove_checkpoints(out)
            raise DivergedError(reason) from error

    @contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Holds what has a name; False where another process does and `wait` is not asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / f".{name}.lock", timeout=-1 if wait else 0)
        with ExitStack() as held:
            with suppress(Timeout):
                held.enter_context(lock)
            yield lock.is_locked

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the device for what is timed: waits for the trainings of this workshop, and lets none begin."""
        with self.claim("timing", wait=True):
            for share in self.folder.glob(".share-*.lock"):
                with self.claim(share.stem[1:], wait=True):
                    pass  # its training is done
            yield

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Holds a share of the device, as `run` does itself; a process that waits to have it alone goes first."""
        with ExitStack() as held:
            with self.claim("timing", wait=True):
                held.enter_context(self.claim(f"share-{os.getpid()}", wait=True))
            yield


# what a training measured and on what, as columns; not its speed, as several processes may have shared the device
ENVIRONMENT = ("hardware", "threads", "python", "torch", "date")
FIGURES = (
    *("val_accuracy", "train_accuracy", "outcome", "parameters", "scales_digest"),
    *("epochs", "batch_size", "lr", "kernel", "identity", "precision"),
    *("train_images", "val_images", "size", "data_digest", "repopt", "commit", *ENVIRONMENT),
)


def figures_of(run: Path) -> dict[str, Any]:
    """What a finished run measured, and on what."""
    info, recipe, summary = (read_json(run, f"{name}.json") for name in ("run", "recipe", "summary"))
    scales = run / "scales.safetensors"
    digest = digest_of(Scales.load(scales)) if scales.exists() else None
    found = {"train_accuracy": None, **summary, **info, **recipe}  # which older runs did not keep
    found |= {"outcome": "finished", "scales_digest": digest, "size": info["image_size"]}
    return {name: found[name] for name in FIGURES}


def digest_of(scales: Scales) -> str:
    """A short text that differs wherever two sets of scales do."""
    digest = hashlib.sha256()
    for operator, branches in sorted(scales.items()):
        for branch, scale in sorted(branches.items()):
            digest.update(f"{operator}.{branch}".encode() + scale.double().numpy().tobytes())
    return digest.hexdigest()[:12]


def _name(job: Job) -> str:
    """A name that differs wherever two jobs do."""
    scales = digest_of(job.scales) if isinstance(job.scales, Scales) else job.scales
    about = {**asdict(replace(job, scales=None)), "scales": scales}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    return f"{job.model}-{job.method}-{job.recipe.seed}-{digest.hexdigest()[:12]}"
