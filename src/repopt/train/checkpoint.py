"""Checkpoints: everything that a run needs to go on as if it had never stopped, written so that none is ever lost.

A checkpoint is written beside the last one, flushed to the disk, and takes its name in one move: a process killed at
any moment, or a full disk, leaves the last one as it was.
"""

from pathlib import Path
from typing import Any

import torch

from repopt.files import UNFINISHED, replacing

NAME = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    """Writes the state of a run, in place of the last one."""
    path = folder / NAME
    try:
        with replacing(path) as unfinished:
            torch.save(state, unfinished)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError where the disk is full
        kept = "the last one is kept" if path.exists() else "there is none yet"
        raise OSError(f"the checkpoint could not be written to {str(path)!r} ({error}); {kept}") from error
    return path


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The state that a run was left in, or None where nothing was written yet."""
    path = folder / NAME
    for unfinished in folder.glob(f"{UNFINISHED}*"):
        unfinished.unlink(missing_ok=True)  # of a process that was killed while it wrote
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        first_line = str(error).partition("\n")[0]  # torch adds advice on how to read what one trusts
        raise ValueError(f"the checkpoint {str(path)!r} cannot be read ({first_line})") from error
    return state


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of the random number generators that models draw from."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
