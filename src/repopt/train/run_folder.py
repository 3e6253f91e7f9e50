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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from filelock import BaseFileLock, FileLock, Timeout

from repopt.files import read_lines_as, remove_unfinished, write_json, write_text
from repopt.train.best_weights import BEST
from repopt.train.checkpoint import CHECKPOINT, PREVIOUS, RunState, has_checkpoint, load_checkpoint, save_checkpoint
from repopt.train.records import EpochRecord, check_epochs

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
