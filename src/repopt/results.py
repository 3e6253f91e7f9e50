"""results/*.csv: every figure with the hardware, the versions, the seed and the date it was taken with."""

import csv
import datetime
import io
import os
import platform
from collections.abc import Mapping, Sequence
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


def append_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Appends rows to a CSV file, which gets a header if it is new.

    Raises:
        ValueError: the file has other columns.
    """
    columns = list(rows[0])
    new = not path.exists() or path.stat().st_size == 0
    if not new:
        with path.open(newline="") as file:
            header = next(csv.reader(file), [])
        if header != columns:
            raise ValueError(f"{str(path)!r} has other columns than these results: name another file")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if new:
        writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as raw:  # in one write: a process that is killed leaves all rows, or none
        raw.write(text.getvalue().encode())


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
