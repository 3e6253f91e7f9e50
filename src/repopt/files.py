"""Files are written whole or not at all: a reader, or a process that goes on after a crash, never sees half of one."""

import csv
import fcntl
import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
