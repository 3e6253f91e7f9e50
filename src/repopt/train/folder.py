"""A run is a folder: what was asked for, what came out, and enough to go on or to report.

recipe.json, run.json     the resolved recipe; model, method, data, hardware, versions, seed, date
metrics.jsonl             a line an epoch
scales.jsonl              for a search, the mean of each branch's scales after each epoch
checkpoint.pt             the last state, to resume from
scales.safetensors        of RepOpt from the start, of a search when it is done
model.safetensors, model_ema.safetensors, config.json, summary.json, report.html      when it is done
tensorboard/              where tensorboard is installed
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# what a finished or half-finished run holds and a folder of something else must not lose
_RESULTS = (
    "metrics.jsonl",
    "scales.jsonl",
    "checkpoint.pt",
    "model.safetensors",
    "model_ema.safetensors",
    "scales.safetensors",
    "config.json",
    "summary.json",
)


UNFINISHED = ".unfinished."


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` in one move once it is on the disk.

    A process that is killed, or an error within, leaves the file that was there as it was.
    """
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")  # the name decides what some write
    try:
        yield unfinished
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the move itself must outlive a power cut too
    finally:
        os.close(folder)


@contextmanager
def placing_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `path` in one move; an error within leaves nothing."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


class RunFolder:
    """The folder of a run, held by one process at a time.

    Args:
        path: the folder, which is made.
        resume: go on with the run that is there.

    Raises:
        ValueError: there is a run already, or none to resume, or another process is at it.
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
        # run.json is a start's first file and recipe.json its last: between them, nothing is worth keeping
        taken = [] if started or (path / "run.json").exists() else [name for name in _RESULTS if (path / name).exists()]
        if taken:
            raise ValueError(f"{str(path)!r} holds {taken[0]}, which is of no run: give another --out")
        self._made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.stat(path / ".lock")  # gone where another process has just let go of the folder
            if not os.path.samestat(held, os.fstat(self._lock.fileno())):
                raise BlockingIOError
        except OSError as error:
            self._lock.close()
            raise ValueError(
                f"another process is training in {str(path)!r}: wait for it, or give another --out"
            ) from error

    def close(self) -> None:
        """Lets go of the folder; one that was made for the run, and that nothing was written to, goes too."""
        if self._made and self.path.is_dir() and [path.name for path in self.path.iterdir()] == [".lock"]:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes a JSON file in one move."""
        with replacing(self.path / name) as path:
            path.write_text(json.dumps(content, indent=2) + "\n")

    def read(self, name: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.path / name).read_text())
        return read

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Appends a line to a .jsonl file."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The records of a .jsonl file; a torn last line is left out."""
        path = self.path / name
        records = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records

    def forget_after(self, epoch: int) -> None:
        """Drops what was recorded of later epochs, which will be trained again."""
        for name in ("metrics.jsonl", "scales.jsonl"):
            kept = [record for record in self.lines(name) if record["epoch"] <= epoch]
            if (self.path / name).exists():
                with replacing(self.path / name) as path:
                    path.write_text("".join(json.dumps(record) + "\n" for record in kept))
