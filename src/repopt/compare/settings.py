"""settings.json of a comparison's folder: what was asked for, and what was chosen, so that it goes on with the same."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repopt.files import read_as, write_json
from repopt.quantize.setting import Backend

_FILE = "settings.json"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a comparison was started with.

    Attributes:
        methods: the names of the ways that are compared.
        epochs: of each training.
        seeds: of each way.
        int8: the backend; None if INT8 is not measured.
        no_int8: why not.
        minutes: the estimate.
    """

    methods: tuple[str, ...]
    epochs: int
    seeds: int
    int8: Backend | None
    minutes: float
    no_int8: str = ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The content of the file."""

    request: dict[str, Any]
    chosen: Chosen


def read_chosen(out: Path, request: dict[str, Any]) -> Chosen | None:
    """What the comparison in a folder was started with; None where there is nothing yet.

    Raises:
        ValueError: the folder holds another comparison, or something else.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{str(out)!r} is a file: give --out a folder")
    if not (out / _FILE).exists():
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"{str(out)!r} holds something that is no comparison: give another --out")
        return None
    found = read_as(out / _FILE, Settings)
    for name, value in json.loads(json.dumps(request)).items():
        if found.request.get(name) != value:
            raise ValueError(
                f"the comparison in {str(out)!r} was started with other settings ({name.replace('_', ' ')}): give "
                "the same again to go on with it, or another --out"
            )
    return found.chosen


def write_chosen(out: Path, request: dict[str, Any], chosen: Chosen) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / _FILE, asdict(Settings(request=request, chosen=chosen)))
