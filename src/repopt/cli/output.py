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


def model_options(given: tuple[str, ...], strides: Strides | None = None) -> dict[str, Any]:
    """The arguments of a model from key=value: numbers, several with commas between them, true, false or text."""
    options: dict[str, Any] = {} if strides is None else {"strides": strides}
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"--model-args takes key=value, as in 'drop_path_rate=0.1', not {word!r}")
        if key in options:
            raise ValueError(f"the model's {key} is given twice: leave {word} out of --model-args")
        parts = [_typed(part) for part in value.split(",")]
        several = len(parts) > 1 and all(isinstance(part, int | float) for part in parts)
        options[key] = tuple(parts) if several else _typed(value)
    return options


def _typed(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def check_seed(seed: int) -> None:
    if seed not in BOUNDS["seed"]:
        raise ValueError(f"--seed must be {BOUNDS['seed']}, not {seed}")
