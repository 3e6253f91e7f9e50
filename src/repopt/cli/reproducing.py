"""`repopt reproduce`: the paper's tables on public data, one command each."""

from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from repopt.cli.output import Device, chosen_device
from repopt.reproduce import TABLES, Scope, Workshop, results_page, write_drawings
from repopt.reproduce import reproduce as reproduce_table
from repopt.train.recipe import Precision
from repopt.train.signals import StoppedError

Name = Literal[
    "conventions",
    "zoo",
    "constants",
    "multipliers",
    "a0",
    "table2",
    "table3",
    "table4",
    "table5",
    "table6",
    "table8",
    "tableB",
    "tableC",
    "tableD",
    "figureE",
]


def reproduce(
    name: tyro.conf.Positional[Name],
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
    """Run a table of the paper again on public data: a row at a time, those that stand in its CSV file left out.

    Example: repopt reproduce table4 --cifar100 DATA/cifar100 --imagenette DATA/imagenette

    Start the same command several times to share the rows between processes; start it again after an interruption.

    Args:
        name: the table; conventions (which are best), zoo (the scales that ship), constants (how good these are),
            multipliers (what they imply) and a0 (whether the smallest loses) are our own.
        cifar100: the folder of CIFAR-100.
        imagenette: the folder that holds Imagenette's train and val.
        authors: the folder of the scales that the paper's authors released.
        seeds: of what is compared; 0 1 2 unless given, and 0 where quick.
        only: a pattern for the names of the rows, such as 'RepOpt*'.
        precision: of training; a row that stands is not measured again for another one.
        out: folder of the CSV files; results unless given, and runs/quick where quick.
        page: the page about all results; docs/results.md unless given, and results.md in `out` where quick.
        runs: folder of the runs; runs/reproduce unless given.
        device: auto takes CUDA where there is one.
        quick: nano on a few embedded digits, in seconds on a CPU: it shows that the code works, and nothing else.
        quiet: say nothing.
    """
    chosen_device(device)
    out = out or Path("runs/quick" if quick else "results")
    scope = Scope(
        cifar100=cifar100,
        imagenette=imagenette,
        authors=authors,
        seeds=seeds or ((0,) if quick else Scope.seeds),
        precision=precision,
        quick=quick,
    )
    workshop = Workshop(folder=runs or (out / "runs" if quick else Path("runs/reproduce")), device=device)
    console = Console(quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    try:
        elsewhere = reproduce_table(name, scope, workshop, out, only=only, tell=console.print)
    except StoppedError as error:
        told = str(error).partition(":")[0]
        raise StoppedError(f"{told}: start the same command again to go on", error.code) from error
    if elsewhere:
        console.print(f"{len(elsewhere)} rows are with other processes")
    path = page or (out / "results.md" if quick else Path("docs/results.md"))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        drawings = write_drawings(TABLES, out, path.parent)
    except ImportError as error:
        drawings = []
        console.print(f"no figures: {error}")
    path.write_text(results_page(TABLES, out, scope, drawings=drawings))
    console.print(f"rows: {out / f'{name}.csv'}\npage: {path}")
    return 0
