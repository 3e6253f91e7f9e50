"""`python -m paper`: lists the tables, makes one, or fills the pages."""

from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.table import Table as Listing

from paper.rows import read_rows
from paper.scope import Scope
from paper.tables import NAMES, reproduce, table_named, work_left
from paper.view import render
from paper.workshop import Workshop
from repopt.cli.output import Device
from repopt.device import chosen_device
from repopt.files import replacing
from repopt.train.progress import StoppedError
from repopt.train.recipe import Precision

_RESULTS = Path(__file__).parent / "results"


def make(
    name: tyro.conf.Positional[str | None] = None,
    *,
    cifar100: Path | None = None,
    imagenette: Path | None = None,
    authors: Path | None = None,
    seeds: tuple[int, ...] | None = None,
    only: str = "*",
    precision: Precision = "bf16",
    out: Path | None = None,
    page: Path | None = None,
    runs: Path | None = None,
    device: Device = "auto",
    quick: bool = False,
    quiet: bool = False,
) -> int:
    """Run a table of the paper again on public data, row by row; rows that are in its CSV file are not run again.

    Example: python -m paper table4 --cifar100 DIR --imagenette DIR

    Start the same command several times to share the rows between processes.
    Start it again after an interruption.
    Other names: docs fills the pages; kernels, variance and scales are analyses.

    Args:
        name: the table; without one, all tables are listed, with what is there of each.
        cifar100: the folder of CIFAR-100.
        imagenette: the folder that holds Imagenette's train and val.
        authors: the folder of the scales that the paper's authors released.
        seeds: of what is compared; 0 1 2 unless given, and 0 where quick.
        only: a pattern for the names of the rows, such as 'RepOpt*'.
        precision: of training; a row that is there is not measured again for another one.
        out: folder of the CSV files; paper/results unless given, and runs/quick where quick.
        page: file for the table as Markdown; NAME.md beside the CSV file where --out or --quick is given. Without
            these, the pages of docs/ are filled.
        runs: folder of the runs; runs/reproduce unless given.
        device: auto takes CUDA where there is one.
        quick: nano on a few embedded digits, in seconds on a CPU: it shows that the code works, and nothing else.
        quiet: say nothing.
    """
    chosen_device(device)
    own, out = out is None and not quick, out or (Path("runs/quick") if quick else _RESULTS)
    scope = Scope(
        cifar100=cifar100,
        imagenette=imagenette,
        authors=authors,
        seeds=seeds or ((0,) if quick else Scope.seeds),
        precision=precision,
        quick=quick,
    )
    if name is None:
        _list_tables(scope, out)
        return 0
    for flag, given in {"--out": out, "--runs": runs}.items():
        if given is not None and given.is_file():
            raise ValueError(f"{str(given)!r} is a file: give {flag} a folder")
    if page is not None and page.is_dir():
        raise ValueError(f"{str(page)!r} is a folder: give --page a file")
    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    folder = runs or (out / "runs" if quick else Path("runs/reproduce"))
    # a log wants a line for each row, a terminal the progress of each training too
    workshop = Workshop(folder=folder, device=device, quiet=quiet or quick or not console.is_terminal)
    try:
        elsewhere = reproduce(name, scope, workshop, out, only=only, tell=console.print)
    except StoppedError as error:
        reason = str(error).partition(":")[0]
        raise StoppedError(f"{reason}: start the same command again to go on", error.code) from error
    if elsewhere:
        console.print(f"{len(elsewhere)} rows are with other processes")
    console.print(f"rows: {out / f'{name}.csv'}")
    with workshop.claim("page", wait=True):
        if own and page is None:
            _fill_pages(console)
        else:
            path = page or out / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = table_named(name)
            with replacing(path) as unfinished:
                rendered = render(table.view, read_rows(out / f"{name}.csv"))
                unfinished.write_text(f"# {table.title}\n\n{rendered}\n")
            console.print(f"table: {path}")
    return 0


def docs() -> int:
    """Fill the placeholders of README.md and docs/*.md from paper/results, and draw the figures."""
    _fill_pages(Console(highlight=False, markup=False, soft_wrap=True))
    return 0


def _fill_pages(console: Console) -> None:
    from paper.pages import draw_figures, write_pages

    for path in write_pages():
        console.print(f"page: {path}")
    try:
        draw_figures()
    except ImportError as error:
        console.print(f"figures are not drawn again: {error}")


def _list_tables(scope: Scope, out: Path) -> None:
    """What can be run, how much of it is there, and how long the rest takes."""
    listing = Listing(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    listing.add_column("name", no_wrap=True)
    listing.add_column("")
    for column in ("rows", "there", "minutes left"):
        listing.add_column(column, justify="right")
    for name in NAMES:
        table = table_named(name)
        work = work_left(table, scope, out / f"{name}.csv")
        left = "" if scope.quick or not work.rows else f"{max(1, round(work.minutes))}"
        listing.add_row(name, table.title, str(work.standing + len(work.rows)), str(work.standing), left)
    console = Console()
    console.print(listing)
    console.print(f"rows in {out}; minutes on one H200", markup=False, highlight=False, soft_wrap=True)
