"""The command line: a file a command, its flags from a function's signature. Only the command that runs is loaded."""

import atexit
import inspect
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import repopt

if TYPE_CHECKING:
    from rich.console import Console

Command = Callable[..., int]

# what a user types -> the function, and what `repopt --help` says of it: the first line of its docstring
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:tell", "Check the equality, and compare four methods on digits: minutes on a CPU."),
    "compare": (
        "compare:compare",
        "Train a network with several methods: which is best, and what does INT8 cost?",
    ),
    "search": ("search:search", "Hyper-Search: find a model's scales on a small data set."),
    "train": ("train:train", "Train a model with one of the methods."),
    "eval": ("evaluate:evaluate", "Evaluate a finished run, also on other data or at other resolutions."),
    "predict": ("predict:predict", "Say which classes a finished run sees in images."),
    "quantize": ("quantize:quantize", "Quantize a finished run to INT8, and see what it costs."),
    "export": ("export:export", "Export a finished run's model, checked on real images before it is kept."),
    "report": ("report:report", "Write one HTML page about a run, or about several side by side."),
    "verify": (
        "verify:verify",
        "Train real blocks and re-parameterized operators side by side, and compare.",
    ),
    "bench step": ("bench:bench_step", "Time an optimizer step with and without repopt, in one run."),
    "bench train": (
        "bench:bench_train",
        "Measure images per second and peak memory of training by several methods.",
    ),
    "bench data": (
        "bench:bench_data",
        "Measure images per second of a data set: decoded, as batches, in training.",
    ),
    "list": ("list_models:list_models", "List the models with their sizes, or the scales that ship."),
}
_ABOUT = "Train a plain network as if it had branches, by changing the optimizer instead of the model."

# where a newcomer starts, and what each command gives
FIRST_COMMANDS: Mapping[str, str] = {
    "repopt demo": "see it on digits: 2 minutes",
    "repopt compare --data photos": "which method suits them?",
    "repopt train --data photos --out runs/photos": "train one model in full",
}

# the commands whose flags are the fields of a recipe, with the run folder where none is named
_RECIPES = {"search": "runs/search", "train": "runs/train", "bench data": ""}


def main(args: list[str] | None = None) -> None:
    """Runs a command of repopt."""
    if args is None:
        own_the_process()
    given = sys.argv[1:] if args is None else list(args)
    if given[:1] == ["--version"]:
        _piped(lambda: print(f"repopt {repopt.__version__}") or 0)
        return
    name, rest = _command(given)
    if name is None:
        sys.exit(_piped(lambda: _help(given)))
    home, function = COMMANDS[name][0].split(":")
    module = f"repopt.cli.{home}"

    def load() -> Command:
        command: Command = getattr(import_module(module), function)
        return partial(command, fields=_base_recipe(name, rest)) if name in _RECIPES else command

    try:
        run(load, rest, prog=f"repopt {name}")
    except SystemExit as done:
        if args is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            _leave(int(done.code or 0))
        raise


def _leave(code: int) -> None:
    """Ends one of several processes at once: gloo's threads may abort the interpreter's end, and torchrun the rest."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def own_the_process() -> None:
    """For a process that runs a command and nothing else: warnings are a line, and Ctrl-C ends it with a line.

    A KeyboardInterrupt would not do: an import or a callback that it goes through may hide it or abort the process.
    What is being written takes its name in one move, so the program can end at any moment. Training leaves a
    checkpoint first.
    """
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # without the line of code that says it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is to be ignored
        signal.signal(signal.SIGINT, _end)
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # by then all work is done


def _end(number: int, frame: FrameType | None) -> None:
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # which a progress bar may have hidden
    os.write(2, f"{cursor}repopt: interrupted\n".encode())
    os._exit(128 + number)


def run(load: Callable[[], Command], given: list[str], *, prog: str) -> None:
    """Runs a command with the flags of its signature; an error that a user can mend is one sentence and exit code 2.

    Args:
        load: imports the command.
        given: what the user typed after its name.
        prog: what the user types before it.
    """
    import tyro
    from safetensors import SafetensorError

    from repopt.train.stopping import LostRankError, StoppedError

    try:
        _check_words(given, prog)
        code = _piped(lambda: tyro.cli(_with_flowing_help(load()), prog=prog, args=given))
    except StoppedError as error:
        _say(error)
        sys.exit(error.code)
    except LostRankError as error:
        _say(error)
        sys.stderr.flush()
        os._exit(2)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, MemoryError, SafetensorError) as error:
        _say(error)
        sys.exit(2)
    sys.exit(code)


def _piped(command: Callable[[], int]) -> int:
    """The exit code of a command, all of whose output is written; 0 if its reader, such as `head`, had seen enough."""
    code = 0
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_pipe()
    except BaseException:  # which matters more than that nobody reads
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_pipe()
        raise
    return code


def _leave_pipe() -> None:
    """Writes nothing more to where nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_flowing_help(command: Command) -> Command:
    """Joins what the docstring says of an argument into one line: tyro would keep its line breaks."""
    function = command.func if isinstance(command, partial) else command
    function.__doc__ = re.sub(r"\n {8}(?=\S)", " ", inspect.cleandoc(function.__doc__ or ""))
    return command


def _check_words(given: list[str], prog: str) -> None:
    """Raises for an empty word: as a path it would be the working directory, which nobody means by it."""
    for before, word in zip([prog, *given], given, strict=False):
        flag = word[:-1] if word.startswith("--") and word.endswith("=") else "" if word else before
        if flag:
            raise ValueError(f"the word after {flag!r} is empty: write what it should be")


def _command(given: list[str]) -> tuple[str | None, list[str]]:
    """The command that the words begin with, and the words after it; `--help` may come first."""
    asked = [word for word in given[:2] if word in ("-h", "--help")]
    given = [word for word in given[:2] if word not in asked] + given[2:] + asked[:1]
    for length in (2, 1):
        name = " ".join(given[:length])
        if len(given) >= length and name in COMMANDS:
            return name, given[length:]
    return None, given


def _help(given: list[str]) -> int:
    """Lists the commands, or those of a group; a word that is none of them is an error."""
    words = [word for word in given if word not in ("-h", "--help")]
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in COMMANDS) else None
    unknown = words[1:2] if group else words[:1]
    if unknown:
        _say(ValueError(_unknown(" ".join(words[:2]) if group else words[0])))
        return 2
    _list_commands(group)
    return 0


def _unknown(word: str) -> str:
    if word in ("reproduce", "analyze"):
        return (
            f"{word} is not part of the library any more: from a checkout, `python -m paper` lists the paper's tables"
        )
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`repopt --help` lists them"
    return f"there is no command {word!r}: {hint}"


def _list_commands(group: str | None) -> None:
    from repopt.cli.screen import Screen

    shown = {name: about for name, (_, about) in COMMANDS.items() if group is None or name.startswith(f"{group} ")}
    console = Screen(highlight=False)
    prog = "repopt" if group is None else f"repopt {group}"
    console.print(f"usage: {prog} COMMAND [flags]\n", markup=False)
    if group is None:
        console.print(f"{_ABOUT}\n")
    _print_pairs(shown, console)
    if group is None:
        console.print("\nThree to start with, where photos is a folder with a subfolder for each class:\n")
        _print_pairs(FIRST_COMMANDS, console)
    console.print("\n`repopt COMMAND --help` explains a command's flags; `repopt --version` prints the version.")


def _print_pairs(pairs: Mapping[str, str], console: "Console") -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True, style="bold")
    for name, about in pairs.items():
        table.add_row(name, about)
    console.print(table)


def _say(error: Exception) -> None:
    from rich.console import Console
    from rich.markup import escape

    said = str(error).rpartition("DefaultCPUAllocator: ")[2] or type(error).__name__  # without a place in torch's code
    if isinstance(error, OSError) and error.strerror:  # without the number
        said = f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror
    Console(stderr=True, highlight=False).print(f"[red]repopt:[/red] {escape(said)}", soft_wrap=True)


def _base_recipe(command: str, given: list[str]) -> Any:
    """The recipe whose fields are the defaults of the flags: it must be known before these are parsed."""
    from repopt.train.auto_recipe import auto_recipe
    from repopt.train.recipe import Recipe, load_recipe
    from repopt.train.runs import run_recipe

    if "--resume" in given:  # so that a field differs from the run's own only where a flag was given
        out = Path(_value(given, "--out") or _RECIPES[command])
        try:
            return run_recipe(out.with_suffix("") if command == "search" and out.suffix == ".safetensors" else out)
        except (ValueError, OSError):  # which is said when the run is resumed
            return Recipe()
    name = _value(given, "--recipe") or "auto"
    if name != "auto":
        return load_recipe(name)
    limit = _value(given, "--limit") or ""
    searching = command == "search"
    return auto_recipe(
        _value(given, "--data") or "digits", searching=searching, limit=int(limit) if limit.isdecimal() else None
    )


def _value(given: list[str], flag: str) -> str | None:
    """The last one that is given, which counts."""
    for number, word in reversed([*enumerate(given)]):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and number + 1 < len(given):
            return given[number + 1]
    return None
