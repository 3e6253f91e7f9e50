"""results/*.csv: every figure with the hardware, the versions, the seed and the date it was taken with."""

import csv
import datetime
import fcntl
import io
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch


def environment(device: str | torch.device) -> dict[str, str]:
    """Where a figure was taken."""
    return {
        "hardware": hardware(torch.device(device)),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def hardware(device: torch.device) -> str:
    """The name of the GPU, or of the processor with the cores that this machine has of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


@cache
def commit() -> str:
    """The commit of the checkout that this package is part of, marked where its source differs from it.

    A copy without git is told by the variable REPOPT_COMMIT; an installed package has none.
    """
    told = os.environ.get("REPOPT_COMMIT")
    if told is not None or shutil.which("git") is None:
        return told or ""
    here = Path(__file__)

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(here.parent), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:
        return ""  # in no checkout, or installed inside that of something else
    changed = git("status", "--porcelain", "--", ".")
    return f"{git('rev-parse', '--short', 'HEAD')}{'-dirty' if changed else ''}"


def append_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Appends rows to a CSV file, which gets a header if it is new; processes that append at once take turns.

    Raises:
        ValueError: the file has other columns.
    """
    columns = list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        header = next(csv.reader([file.readline().decode()]), [])
        if header and header != columns:
            raise ValueError(f"{str(path)!r} has other columns than these results: name another file")
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        if not header:
            writer.writeheader()
        writer.writerows(rows)
        data, end = text.getvalue().encode(), file.seek(0, os.SEEK_END)
        if file.write(data) != len(data):  # in one write: a process that is killed leaves all rows, or none
            file.truncate(end)
            raise OSError(f"{str(path)!r} could not take all rows: is the disk full?")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
