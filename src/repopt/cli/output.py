"""What several commands take and print."""

import json
from typing import Any, Literal

from rich import box
from rich.table import Table

from repopt.train.recipe import BOUNDS

Device = Literal["auto", "cpu", "cuda"]
Strides = tuple[int, int, int, int, int]


def table(first: str, *numbers: str, title: str | None = None) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column(first)
    for column in numbers:
        made.add_column(column, justify="right")
    return made


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def check_seed(seed: int) -> None:
    if seed not in BOUNDS["seed"]:
        raise ValueError(f"--seed must be {BOUNDS['seed']}, not {seed}")
