"""`python -m paper`: lists the paper's tables, makes one, fills the pages, or analyzes runs."""

import io
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import tyro

from paper.jobs import Scope
from paper.tables import NAMES, reproduce, rows_left, table_named
from paper.view import read_rows, render
from paper.workshop import Workshop
from repopt.cli import run
from repopt.cli.output import Device
from repopt.device import chosen_device
from repopt.files import write_text
from repopt.train.stopping import StoppedError

_RESULTS = Path(__file__).parent / "results"
_COMMANDS = {"docs": "commands:docs", **{name: f"analyses:{name}" for name in ("kernels", "variance", "scales")}}


def main(args: list[str] | None = None) -> None:
    """Runs a table, or another command where its name comes first."""
    given = sys.argv[1:] if args is None else args
    named = [word for word in given[:1] if word in _COMMANDS]
    where = _COMMANDS[named[0]] if named else "commands:make"
    run(partial(resolve_name, f"paper.{where}"), given[len(named) :], prog=" ".join(["python -m paper", *named]))


def make(
    name: tyro.conf.Positional[str | None] = None,
    *,
    scope: Annotated[Scope, tyro.conf.arg(name="")],
    only: str = "*",
    out: Path | None = None,
    page: Path | None = None,
    runs: Path | None = None,
    device: Device = "auto",
    quiet: bool = False,
) -> int:
    """Run a table of the paper on public data, row by row.

    Example: python -m paper table4 --cifar100 DIR --imagenette DIR

    Rows in the CSV file are not run again: if it is interrupted, start it again.

    Started several times at once, it shares the rows between the processes.

    Other names: docs fills the pages; kernels, variance and scales analyze runs.

    Args:
        name: the table; without one, all tables are listed, with how many rows each has and lacks.
        scope: on what.
        only: a pattern for the names of the rows, such as 'RepOpt*'.
        out: folder of the CSV files; paper/results unless given, and runs/quick where quick.
        page: file for the table as Markdown; NAME.md beside the CSV file where --out or --quick is given. Without
            these, the pages of docs/ are filled.
        runs: folder of the runs; runs/reproduce unless given.
        device: auto is CUDA if there is one.
        quiet: print nothing.
    """
    chosen_device(device)
    of_checkout = out is None and page is None and not scope.quick
    out = out or (Path("runs/quick") if scope.quick else _RESULTS)
    runs = runs or (out / "runs" if scope.quick else Path("runs/reproduce"))
    if name is None:
        return _list_tables(scope, out)
    if name.endswith("_cpu"):
        raise ValueError(f"the name has a flag for its end: give {name.removesuffix('_cpu')} --cpu")
    if scope.cpu:
        if f"{name}_cpu" not in NAMES:
            raise ValueError(f"--cpu is for table4, decay, adamw and int8_rounding, not for {name}")
        name, device = f"{name}_cpu", "cpu"
    for flag, folder in {"--out": out, "--runs": runs}.items():
        if folder.is_file():
            raise ValueError(f"{str(folder)!r} is a file: give {flag} a folder")
    if page is not None and page.is_dir():
        raise ValueError(f"{str(page)!r} is a folder: give --page a file")
    if scope.authors is not None and not scope.authors.is_dir():
        raise ValueError(f"there is no folder {str(scope.authors)!r}: give --authors that of the .pth files")
    table, path, page = table_named(name), out / f"{name}.csv", page or out / f"{name}.md"
    # a log wants a line for each row, a terminal the progress of each training too
    workshop = Workshop(folder=runs, device=device, quiet=quiet or scope.quick or not sys.stdout.isatty())
    with redirect_stdout(io.StringIO() if quiet else sys.stdout):
        try:
            elsewhere = reproduce(table, scope, workshop, path, only)
        except StoppedError as error:
            reason = str(error).partition(":")[0]
            raise StoppedError(f"{reason}: start the same command again to go on", error.code) from error
        if elsewhere:
            print(f"{len(elsewhere)} rows are with other processes")
        print(f"rows: {path}")
        with workshop.claim("page", wait=True):
            if of_checkout:
                return docs()
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, f"# {table.title}\n\n{render(table, read_rows(path))}\n")
            print(f"table: {page}")
    return 0


def docs() -> int:
    """Fill the placeholders of README.md and docs/*.md from paper/results, and draw the figures."""
    from paper.pages import draw_figures, write_pages

    for path in write_pages():
        print(f"page: {path}")
    try:
        draw_figures()
    except ImportError as error:
        print(f"figures are not drawn again: {error}")
    return 0


def _list_tables(scope: Scope, out: Path) -> int:
    """What can be run, and how much of it is there."""
    width = max(len(table_named(name).title) for name in NAMES)
    for name in NAMES:
        table = table_named(name)
        path = out / f"{name}.csv"
        left, _ = rows_left(table, scope, path)
        missing = f", {len(left)} missing" if left else ""
        print(f"{name.replace('_cpu', ' --cpu'):19} {table.title:{width}} {len(read_rows(path)):4} rows{missing}")
    print(f"rows in {out}; missing are rows of the seeds {' '.join(map(str, scope.seeds))}")
    return 0
