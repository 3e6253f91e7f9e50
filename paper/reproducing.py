"""`repopt reproduce`: the paper's tables on public data, one command each."""

from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from paper import TABLES, Scope, Workshop, drawings_in, results_page, write_drawings
from paper import reproduce as reproduce_table
from paper.tables import work_left
from repopt.cli.output import Device
from repopt.device import chosen_device
from repopt.files import replacing
from repopt.train.recipe import Precision
from repopt.train.signals import StoppedError


def reproduce(
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
    """Run a table of the paper again on public data: a row at a time.

    Rows that stand in its CSV file are left out.

    Example: repopt reproduce table4 --cifar100 DIR --imagenette DIR

    Start the same command several times to share the rows between processes.
    Start it again after an interruption.

    Args:
        name: the table; without one, all tables are listed, with what stands of each.
        cifar100: the folder of CIFAR-100.
        imagenette: the folder that holds Imagenette's train and val.
        authors: the folder of the scales that the paper's authors released.
        seeds: of what is compared; 0 1 2 unless given, and 0 where quick.
        only: a pattern for the names of the rows, such as 'RepOpt*'.
        precision: of training; a row that stands is not measured again for another one.
        out: folder of the CSV files; results unless given, and runs/quick where quick.
        page: the page about all results; docs/results.md where there is one and neither --out nor --quick is given,
            else results.md beside the CSV files.
        runs: folder of the runs; runs/reproduce unless given.
        device: auto takes CUDA where there is one.
        quick: nano on a few embedded digits, in seconds on a CPU: it shows that the code works, and nothing else.
        quiet: say nothing.
    """
    chosen_device(device)
    # the page about the rows of this checkout, and about no others
    own = Path("docs/results.md") if out is None and not quick else None
    out = out or Path("runs/quick" if quick else "results")
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
    # a log wants a line a row, a terminal the progress of each training too
    workshop = Workshop(folder=folder, device=device, quiet=quiet or quick or not console.is_terminal)
    try:
        elsewhere = reproduce_table(name, scope, workshop, out, only=only, tell=console.print)
    except StoppedError as error:
        told = str(error).partition(":")[0]
        raise StoppedError(f"{told}: start the same command again to go on", error.code) from error
    if elsewhere:
        console.print(f"{len(elsewhere)} rows are with other processes")
    path = page or (own if own is not None and own.exists() else out / "results.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    with workshop.claim("page", wait=True), replacing(path) as unfinished:
        try:
            write_drawings(TABLES, out, path.parent)
        except ImportError as error:
            console.print(f"figures are not drawn again: {error}")
        # what is missing is missing of the whole table, whichever rows were asked for
        full = scope if quick else None
        unfinished.write_text(results_page(TABLES, out, full, drawings=drawings_in(path.parent)))
    console.print(f"rows: {out / f'{name}.csv'}\npage: {path}")
    return 0


def _list_tables(scope: Scope, out: Path) -> None:
    """What can be run, how much of it stands, and how long the rest takes."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("")
    for column in ("rows", "stand", "minutes left"):
        table.add_column(column, justify="right")
    for name, each in TABLES.items():
        work = work_left(each, scope, out / f"{name}.csv")
        left = "" if scope.quick or not work.rows else f"{max(1, round(work.minutes))}"
        table.add_row(name, each.title, str(work.standing + len(work.rows)), str(work.standing), left)
    console = Console()
    console.print(table)
    console.print(f"rows in {out}; minutes on one H200", markup=False, highlight=False, soft_wrap=True)
