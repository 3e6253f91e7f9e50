"""Files are written whole or not at all, and what is read is checked by type.

A reader, or a process that goes on after a crash, never sees half of a file.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import stat
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

UNFINISHED = ".unfinished."
_SEAL = "sha256"

T = TypeVar("T")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, whose file replaces `path` in one move once it is on the disk.

    After an error within, or if the process is killed, the file that was there is still there.

    Raises:
        ValueError: there is something that is no ordinary file, such as a link or /dev/null: it would be gone.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError(f"{str(path)!r} is not an ordinary file: name another to write to")
    unfinished = remove_unfinished(path)
    try:
        # made here, and new: a writer would follow a link that someone put there
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield unfinished
        _flush(unfinished)
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(unfinished)):
            error.filename = str(path)  # what was asked for; of a full disk the system names no file
        raise
    _flush(path.parent)  # the move itself must outlive a power cut too


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextmanager
def placing_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `path` in one move; an error within leaves nothing."""
    unfinished = remove_unfinished(path)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for inside in (*unfinished.rglob("*"), unfinished):
            _flush(inside)
        unfinished.rename(path)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    _flush(path.parent)


def remove_unfinished(path: Path) -> Path:
    """Removes what a killed process left of a file or folder, and returns where the next one is to be written."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")  # some writers choose a format by the suffix
    if unfinished.is_dir() and not unfinished.is_symlink():
        shutil.rmtree(unfinished)
    else:
        unfinished.unlink(missing_ok=True)
    return unfinished


def _flush(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_sealed(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file with a digest of all that it holds, whole or not at all.

    Its permissions are those of any new file: `safetensors.torch.save_file` makes files that only their owner can read.
    """
    # copies: safetensors takes no two names of one memory
    whole = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    about = {"format": "pt", **(metadata or {})}
    content = memoryview(save(whole, {**about, _SEAL: _digest(whole, about)}))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8 : 8 + size]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors has no order: equal bits here
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(content[8 + size :])


def read_sealed(path: Path, *, unsealed_too: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of such a file.

    Args:
        path: of the file.
        unsealed_too: take a file without a digest as it is: older versions and other programs write such.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it does not hold what was written.
    """
    check_file(path)
    with _opened(path) as file:
        metadata, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    seal = metadata.pop(_SEAL, None)
    if not (unsealed_too and seal is None) and seal != _digest(tensors, metadata):
        raise ValueError(f"{str(path)!r} is damaged: it does not hold what was written")
    metadata.pop("format", None)
    return tensors, metadata


def seal_of(path: Path) -> str | None:
    """The digest that such a file carries, as it stands there; None for a file without one."""
    with _opened(path) as file:
        return (file.metadata() or {}).get(_SEAL)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged, or not a safetensors file ({error})") from error


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def append_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Appends rows to a CSV file, with a header if it is new; processes that append at the same time take turns.

    A file that lacks some of the columns, as an earlier version wrote it, gets them; its own rows are empty there.

    Raises:
        ValueError: the file has other columns.
    """
    from filelock import FileLock  # 25 ms that `import repopt` need not pay

    columns = list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside the file, where every process and machine finds it; removing it would let two in at once
    with FileLock(path.with_name(f".{path.name}.lock")), _with_columns(path, columns).open("a+b", buffering=0) as file:
        file.seek(0)
        header = next(csv.reader([file.readline().decode()]), [])
        if header and header != columns:
            raise ValueError(f"{str(path)!r} has different columns from these results: name another file")
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        if not header:
            writer.writeheader()
        writer.writerows(rows)
        data, end = text.getvalue().encode(), file.seek(0, os.SEEK_END)
        if file.write(data) != len(data):  # in one write: a process that is killed leaves all rows, or none
            file.truncate(end)
            raise OSError(f"{str(path)!r} could not take all rows: is the disk full?")


def are_some_of(columns: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the columns of a file are among these and in their order, so that it can get the others."""
    return [*columns] == [name for name in wanted if name in columns]


def _with_columns(path: Path, columns: list[str]) -> Path:
    """The file, written anew if it lacks some of the columns."""
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            header, rows = list(reader.fieldnames or columns), list(reader)
        if header != columns and are_some_of(header, columns):
            with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return path


_MOST_TEXT = 1 << 28


def check_file(path: Path) -> int:
    """The bytes of a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is something else, such as a FIFO, which would be read for ever.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{str(path)!r} is not a file: put one there, or remove it")
    return status.st_size


def read_text(path: Path) -> str:
    """The text of a file; bytes that are not UTF-8 become question marks."""
    if (size := check_file(path)) > _MOST_TEXT:
        raise ValueError(f"{str(path)!r} has {size:,} bytes, which is too large to be read as text")
    return path.read_text(encoding="utf-8", errors="replace")


def read_torch(path: Path) -> Any:
    """What a PyTorch file holds, which is tensors alone: nothing in it is executed.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or holds something else.
    """
    check_file(path)
    try:
        if zipfile.is_zipfile(path):  # its checksums, which torch writes and does not read
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise ValueError("a checksum is wrong")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file breaks the reader in many ways
        raise ValueError(
            f"{str(path)!r} is not a PyTorch file that holds tensors alone, so it was not loaded: it may be corrupt, "
            "or hold other objects beside the weights"
        ) from error


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not TOML.
    """
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        what = str(error).partition(";")[0]  # of a number that is too long, without Python's advice
        raise ValueError(f"{str(path)!r} cannot be read: {what}") from error


def read_as(path: Path, kind: type[T]) -> T:
    """What a JSON file holds, checked against a type; keys that the type does not know are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or holds something else than `kind`.
    """
    return _parsed(read_text(path), kind, path)


def read_lines_as(path: Path, kind: type[T]) -> list[T]:
    """The same for each line of a .jsonl file; a missing file has no lines.

    What follows the last newline was being written when its process was killed, and is left out.
    """
    lines = read_text(path).split("\n")[:-1] if path.exists() else []
    return [_parsed(line, kind, path, number) for number, line in enumerate(lines, start=1) if line.strip()]


def _parsed(text: str, kind: type[T], path: Path, line: int | None = None) -> T:
    # json and not msgspec's own decoder: losses may be NaN, and an error should name its line
    try:
        content = json.loads(text)
        if "\\ud" in text.lower():  # half of a character, which cannot be printed
            json.dumps(content, ensure_ascii=False).encode()
        return msgspec.convert(content, kind)
    except json.JSONDecodeError as error:
        trouble = f"line {(line or 1) + error.lineno - 1} is not JSON ({error.msg})"
    except msgspec.ValidationError as error:
        trouble = f"{error}" if line is None else f"line {line}: {error}"
    except (ValueError, RecursionError):
        trouble = "it holds half a character, a number of thousands of digits, or lists within lists without end"
    raise ValueError(f"{str(path)!r} is corrupt: {trouble}; mend it, or bring a copy back")
