"""checkpoint.pt: the state that a run goes on from, and how damage and mix-ups are noticed.

The file is what `torch.save` writes and `torch.load` reads, and a seal behind it: the SHA-256 of everything before. The
state says which run it belongs to, and with which settings it was trained. The checkpoint before the last one is kept
as checkpoint.previous.pt, in case the last one is damaged.
"""

import errno
import hashlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import msgspec
import torch
from torch import Tensor

from repopt.files import check_file, replacing
from repopt.plans.wording import first_line
from repopt.train.records import read_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"

_SEAL = b"\nrepopt sha256 "
_HEX = 64
_FREE = ("epochs", "workers")  # settings that may change when a run is resumed
_FIXED = ("id", "method", "model", "options")  # of run.json


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Random(TypedDict):
    cpu: Tensor
    cuda: NotRequired[Tensor]


class _RankState(TypedDict):
    totals: Tensor
    random: _Random


class _Optimizer(TypedDict):
    state: dict[Any, Any]
    param_groups: list[dict[str, Any]]


@dataclass
class Position:
    """How far a run is: whole epochs, steps of the next one, and the seconds that those steps took."""

    epoch: _Count
    step: _Count
    seconds: float
    best_accuracy: float
    best_epoch: _Count

    @staticmethod
    def start() -> "Position":
        return Position(epoch=0, step=0, seconds=0.0, best_accuracy=-1.0, best_epoch=0)

    def __str__(self) -> str:
        return f"step {self.step} of epoch {self.epoch + 1}" if self.step else f"epoch {self.epoch}"


class RunState(TypedDict):
    """What a run needs to go on, as `Trainer` saves it."""

    model: dict[str, Any]
    optimizer: _Optimizer
    scales: NotRequired[dict[str, dict[str, Tensor]] | None]
    ema: dict[str, Any] | None
    scaler: dict[str, Any]
    ranks: Annotated[list[_RankState], msgspec.Meta(min_length=1)]
    position: Position
    clock: dict[str, float]


class _DamagedError(ValueError):
    """The checkpoint cannot be trusted; the one before it may be."""


class _Hashed(io.BufferedWriter):
    """A file that is written from start to end, and the digest of what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.digest = hashlib.sha256()

    def write(self, data: "Buffer") -> int:
        self.digest.update(data)
        return super().write(data)


def read_origin(folder: Path) -> dict[str, Any]:
    """The run in a folder: its id, and what must be the same whenever it is resumed."""
    recipe, info = read_json(folder, "recipe.json"), read_json(folder, "run.json")
    settings = {name: value for name, value in recipe.items() if name not in _FREE}
    return settings | {name: info.get(name) for name in _FIXED}


def has_checkpoint(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS))


def remove_checkpoints(folder: Path) -> None:
    for name in (CHECKPOINT, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def save_checkpoint(folder: Path, state: Mapping[str, Any], origin: Mapping[str, Any] | None = None) -> Path:
    """Writes the state of a run; the last one becomes the previous one.

    Args:
        folder: the run's.
        state: tensors, and what JSON knows.
        origin: the run, as `read_origin` gives it.
    """
    path = folder / CHECKPOINT
    try:
        with replacing(path) as unfinished:
            with _Hashed(unfinished) as file:
                torch.save({**state, "origin": dict(origin or {})}, file)
                file.write(_SEAL + file.digest.hexdigest().encode())
                file.flush()
                os.fsync(file.fileno())  # before the last two are touched
            if path.exists():
                path.replace(folder / PREVIOUS)  # a kill between the two moves leaves this one to go on from
    except (OSError, RuntimeError) as error:
        kept = "the last one is kept" if has_checkpoint(folder) else "there is none yet"
        raise OSError(f"the checkpoint could not be written to {str(path)!r} ({_cause(error)}); {kept}") from error
    return path


def load_checkpoint(
    folder: Path, device: torch.device, origin: Mapping[str, Any] | None = None, layout: Any = dict[str, Any]
) -> dict[str, Any] | None:
    """The state that a run was left in, or None where nothing was saved yet.

    Args:
        folder: the run's.
        device: for the tensors.
        origin: the run, as `read_origin` gives it; None accepts the checkpoint of any.
        layout: the type of the state, `RunState` for a run's.

    Raises:
        ValueError: no checkpoint can be read, or the checkpoint is not this run's.
    """
    damaged: list[str] = []
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            state = _read(path, device, origin)
            _check_layout(path, state, layout)
        except _DamagedError as error:
            damaged.append(str(error))
            continue
        except OSError as error:
            if error.errno != errno.EIO:  # others pass, and the file may be whole
                raise
            damaged.append(f"the checkpoint {str(path)!r} cannot be read ({_cause(error)})")
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}: the run goes on from the checkpoint before it", stacklevel=2)
            path.replace(folder / CHECKPOINT)  # or the next checkpoint would put the damaged one in its place
        return state
    if damaged:
        raise ValueError(f"{' and '.join(damaged)}: bring it back from a copy, or start another run")
    return None


def _read(path: Path, device: torch.device, origin: Mapping[str, Any] | None) -> dict[str, Any]:
    check_file(path)
    sealed = _is_sealed(path)
    if not sealed and (origin or {}).get("id") is not None:
        raise _DamagedError(f"the checkpoint {str(path)!r} has lost its checksum")
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        trouble = f"the checkpoint {str(path)!r} cannot be read ({_cause(error)})"
        if not sealed:
            raise _DamagedError(trouble) from error
        if isinstance(error, OSError):
            raise
        raise ValueError(trouble) from error  # what was sealed is whole: the trouble is elsewhere, such as a full GPU
    _check_layout(path, state, dict[str, Any])
    found = state.pop("origin", None)
    if not sealed and found is not None:
        raise _DamagedError(f"the checkpoint {str(path)!r} has lost its checksum")
    if not sealed:
        warnings.warn(
            f"the checkpoint {str(path)!r} was written by an earlier version, without a checksum: whether it is "
            "damaged, or another run's, cannot be checked",
            stacklevel=3,
        )
    elif origin is not None:
        _check_origin(path, found or {}, origin)
    return state


def _is_sealed(path: Path) -> bool:
    """Whether the file ends in a seal, which must be right."""
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END) - len(_SEAL) - _HEX
        if left < 0:
            return False
        file.seek(left)
        if not (seal := file.read()).startswith(_SEAL):
            return False
        file.seek(0)
        digest = hashlib.sha256()
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
    if seal[len(_SEAL) :] != digest.hexdigest().encode():
        raise _DamagedError(f"the checkpoint {str(path)!r} is damaged (its checksum is wrong)")
    return True


def _check_layout(path: Path, state: object, layout: Any) -> None:
    try:
        msgspec.convert(state, layout)
    except msgspec.ValidationError as error:
        raise _DamagedError(f"the checkpoint {str(path)!r} does not hold the state of a run ({error})") from error


def _check_origin(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if found.get("id") != wanted.get("id"):
        raise ValueError(
            f"the checkpoint {str(path)!r} is another run's: bring this run's own back, or resume that run instead"
        )
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"the checkpoint {str(path)!r} was trained with {name} {found.get(name)!r}, and now the run folder "
                f"says {wanted.get(name)!r}: set it back, or start another run"
            )


def _cause(error: BaseException) -> str:
    """What went wrong, in one line; torch's writer hides the system's own error behind another."""
    behind = error.__context__ if isinstance(error.__context__, OSError) else error
    said = behind.strerror if isinstance(behind, OSError) else None
    return said or first_line(behind)


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the random number generators that models draw from."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
