"""Pickles that hold arrays, and a reader that makes nothing else.

A pickle is a program: to load one freely is to run what its author wrote. This reader knows the few functions that
numpy arrays are rebuilt with; whatever else a pickle asks for is refused by name and nothing of it is called.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class _RefusedError(Exception):
    """A pickle asked for something that no array needs."""


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes into a pickle of an old protocol."""
    if encoding != "latin1":
        raise _RefusedError(f"_codecs.encode to {encoding}")
    return text.encode("latin1")


# what an array says it is rebuilt with, wherever this numpy keeps it
_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_PERMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): _RECONSTRUCT for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PERMITTED:
            raise _RefusedError(f"{module}.{name}")
        return _PERMITTED[module, name]


def load_arrays(content: bytes, name: Path) -> dict[str, Any]:
    """Reads a pickled dictionary of arrays, lists, numbers and text.

    Args:
        content: of the file.
        name: of the file, for the message.

    Raises:
        ValueError: it asks for anything else, or is damaged.
    """
    try:
        read = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as error:
        raise ValueError(
            f"{str(name)!r} asks for {error}, which no array needs, so it was not loaded: get the file from CIFAR's "
            "own page"
        ) from error
    except Exception as error:  # a corrupt pickle breaks the reader in many ways
        raise ValueError(
            f"{str(name)!r} is not a readable pickle ({error}): it may be cut off, so download it again"
        ) from error
    if not isinstance(read, dict):
        raise ValueError(f"{str(name)!r} holds a {type(read).__name__}, not a dictionary as CIFAR's files do")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in read.items()}
