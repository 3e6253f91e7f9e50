"""A cache of decoded images on disk, so that a second start reads bytes instead of decoding files.

An entry's name is a digest of the files' paths, sizes and times and of the images' side: a change to any of them makes
another entry, so nothing stale is ever read. Entries are written elsewhere and moved into place, so that a reader finds
a whole one or none. A digest inside tells whether an entry is still what was written; a damaged one is made again.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from repopt.files import read_sealed, write_sealed

_FORMAT = "3"
_ABANDONED = 3600  # seconds after which nobody writes an entry any more


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
        paths: the image files.
        use: what is made of them, for instance `96` for their pixels at that side.
        folder: of the cache; the default one unless given.
        make: makes the tensor, and messages by place.
    """
    entry = (folder or default_cache()) / f"{_key(paths, use)}.safetensors"
    found = _load(entry)
    if found is None:
        found = make()
        if not found[1]:  # what could not be read now may be read the next time, when the disk or its rights are mended
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
        tensors, metadata = read_sealed(entry)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"the decoded images cannot be used and are made again: {error}", stacklevel=6)
        return None
    messages: dict[str, str] = json.loads(metadata["messages"])
    return tensors["tensor"], {int(place): message for place, message in messages.items()}


def _save(entry: Path, tensor: Tensor, messages: dict[int, str]) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        for left in entry.parent.glob("*.part"):  # by a process that was interrupted
            with suppress(OSError):  # another process may remove it, too
                if time.time() - max(each.stat().st_mtime for each in (left, *left.iterdir())) > _ABANDONED:
                    shutil.rmtree(left)
        # in a folder of its own: processes that start together write the same entry
        with tempfile.TemporaryDirectory(dir=entry.parent, suffix=".part") as beside:
            written = Path(beside, entry.name)
            write_sealed(written, {"tensor": tensor}, {"messages": json.dumps(messages)})
            written.replace(entry)
    except (OSError, SafetensorError) as error:
        warnings.warn(
            f"the decoded images could not be kept in {str(entry.parent)!r} ({error}), so the next start decodes them "
            "again: give another cache folder",
            stacklevel=6,  # load_data's caller
        )
