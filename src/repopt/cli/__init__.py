"""The command line: a function a command, its flags from the function's signature."""

import os
import sys
from collections.abc import Callable
from types import FunctionType

import tyro
from rich.console import Console
from rich.markup import escape

import repopt
from repopt.cli.analyses import analyze_kernels, analyze_scales, analyze_variance
from repopt.cli.benchmarks import bench_step, bench_train
from repopt.cli.exporting import export
from repopt.cli.listing import list_models
from repopt.cli.proofs import verify
from repopt.cli.quantizing import quantize
from repopt.cli.reproducing import reproduce
from repopt.cli.story import tell
from repopt.cli.training import evaluate, report, search, train
from repopt.train.recipe import Recipe, load_recipe
from repopt.train.signals import StoppedError

Command = Callable[..., int]


def bench() -> int:
    """Measure: `repopt bench step` (what a step costs), `repopt bench train` (images a second)."""
    raise AssertionError("a group is never called")


def analyze() -> int:
    """Look as the paper's appendices do: `repopt analyze kernels`, `variance` and `scales`."""
    raise AssertionError("a group is never called")


COMMANDS: dict[str, Command] = {
    "demo": tell,
    "search": search,
    "train": train,
    "eval": evaluate,
    "quantize": quantize,
    "export": export,
    "report": report,
    "verify": verify,
    "bench": bench,
    "analyze": analyze,
    "reproduce": reproduce,
    "list": list_models,
}
GROUPS: dict[str, dict[str, Command]] = {
    "bench": {"step": bench_step, "train": bench_train},
    "analyze": {"kernels": analyze_kernels, "variance": analyze_variance, "scales": analyze_scales},
}

# the recipe of a command where none is named: for digits, for images held on the device, for folders
_RECIPES = {"search": ("demo", "search", "search"), "train": ("demo", "small", "imagenet")}


def main(args: list[str] | None = None) -> None:
    """Runs the command; an error that a user can mend is one sentence and exit code 2."""
    given = sys.argv[1:] if args is None else args
    if given == ["--version"]:
        print(f"repopt {repopt.__version__}")
        return
    commands, prog = COMMANDS, "repopt"
    about = "Train a plain network as if it had branches, by changing the optimizer instead of the model."
    if given and given[0] in GROUPS:
        prog, about = f"repopt {given[0]}", COMMANDS[given[0]].__doc__ or ""
        commands, given = GROUPS[given[0]], given[1:]
    if not given:
        given = ["--help"]
    try:
        if given[0] in _RECIPES:
            commands = {**commands, given[0]: _with_recipe(commands[given[0]], _base_recipe(given))}
        if given[0] in commands:  # its flags alone, so that near ones are not sought in all commands
            code = tyro.cli(commands[given[0]], prog=f"{prog} {given[0]}", args=given[1:])
        else:
            code = tyro.extras.subcommand_cli_from_dict(commands, prog=prog, description=about, args=given)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except StoppedError as error:
        _say(error)
        sys.exit(error.code)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        _say(error)
        sys.exit(2)
    sys.exit(code)


def _say(error: Exception) -> None:
    Console(stderr=True, highlight=False).print(f"[red]repopt:[/red] {escape(str(error))}", soft_wrap=True)


def _base_recipe(given: list[str]) -> Recipe:
    """The recipe whose fields are the defaults of the flags: it must be known before these are parsed."""
    name = _value(given, "--recipe") or "auto"
    if name == "auto":
        kind = (_value(given, "--data") or "digits").partition(":")[0]
        name = _RECIPES[given[0]][{"digits": 0, "folder": 2}.get(kind, 1)]
    return load_recipe(name)


def _value(given: list[str], flag: str) -> str | None:
    for number, word in enumerate(given):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and number + 1 < len(given):
            return given[number + 1]
    return None


def _with_recipe(command: Command, recipe: Recipe) -> Command:
    """The command with another default for the recipe's fields."""
    assert isinstance(command, FunctionType)
    other = FunctionType(command.__code__, command.__globals__, command.__name__, command.__defaults__)
    other.__kwdefaults__ = {**(command.__kwdefaults__ or {}), "fields": recipe}
    other.__annotations__, other.__doc__ = command.__annotations__, command.__doc__
    return other
