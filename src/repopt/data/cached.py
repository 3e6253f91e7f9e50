"""A cache of decoded images on disk, so that a second start reads bytes instead of decoding files.

An entry's name is a digest of the files' paths, sizes and times and of the images' side: a change to any of them makes
another entry, so nothing stale is ever read. Entries are written to a temporary file and moved into place, so that a
reader finds a whole one or none.
"""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_FORMAT = "1"


def default_cache() -> Path:
    """`$REPOPT_CACHE`, or `~/.cache/repopt`."""
    return Path(os.environ.get("REPOPT_CACHE") or Path.home() / ".cache" / "repopt")


def cached(
    paths: Sequence[Path],
    use: str,
    folder: Path | None,
    make: Callable[[], tuple[Tensor, dict[int, str]]],
) -> tuple[Tensor, dict[int, str]]:
    """What `make` returns, from disk where it was made before.

    Args:
        paths: of the files that it is made of.
        use: what is made of them, for instance `96` for their pixels at that side.
        folder: of the cache; the default one unless given.
        make: makes the tensor, and messages by place.
    """
    entry = (folder or default_cache()) / f"{_key(paths, use)}.safetensors"
    found = _load(entry)
    if found is None:
        found = make()
        _save(entry, *found)
    return found


def _key(paths: Sequence[Path], use: str) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{use}\n".encode())
    for path in paths:
        stat = os.stat(path)
        digest.update(
            f"{os.path.abspath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()[:40]


def _load(entry: Path) -> tuple[Tensor, dict[int, str]] | None:
    try:
        with safe_open(entry, framework="pt") as file:
            messages = json.loads((file.metadata() or {})["messages"])
            return file.get_tensor("tensor"), {int(place): message for place, message in messages.items()}
    except (OSError, SafetensorError, KeyError, ValueError):
        return None  # none, or a damaged one: it is made again


def _save(entry: Path, tensor: Tensor, messages: dict[int, str]) -> None:
    beside = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=entry.parent, suffix=".part")
        os.close(handle)
        save_file({"tensor": tensor}, beside, metadata={"messages": json.dumps(messages)})
        os.replace(beside, entry)
    except (OSError, SafetensorError) as error:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)
        warnings.warn(
            f"the decoded images could not be kept in {str(entry.parent)!r} ({error}), so the next start decodes them "
            "again: give another cache folder",
            stacklevel=6,  # load_data's caller
        )
