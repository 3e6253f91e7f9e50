"""`repopt demo`: everything on data that ships with the package, in minutes on two CPU cores."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from repopt.algebra.csla import Convention
from repopt.train.methods import Method
from repopt.train.recipe import demo
from repopt.train.training import Job, train_run
from repopt.verification.cases import run_matrix

# what is compared, each with the same data, recipe and seeds
_COMPARED: tuple[tuple[str, Method, Convention], ...] = (
    ("plain SGD", "sgd", "authors"),
    ("plain SGD, He init", "sgd", "paper"),
    ("RepVGG", "repvgg", "authors"),
    ("RepOpt, searched scales", "repopt", "authors"),
)


def tell(
    out: Path = Path("runs/demo"),
    model: str = "repopt_vgg_nano",
    seeds: int = 3,
    epochs: int = demo().epochs,
    quiet: bool = False,
) -> int:
    """Check the equality, search scales, train four ways, and write a report: minutes on a CPU.

    Example: repopt demo --seeds 1

    Args:
        out: folder of the runs; if it is taken, the next free name.
        model: the plain model.
        seeds: of each training.
        epochs: of each training.
        quiet: show no progress.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, not {seeds}")
    base = Job(method="search", model=model, data="digits", recipe=replace(demo(), epochs=epochs))
    folder = next(path for path in _names(out) if not path.exists())
    console = Console()
    equal = _show_equality(console)
    console.print(f"2. Hyper-Search of {model} on digits.")
    search = train_run(base, folder / "search", quiet=quiet)
    console.print(f"   accuracy {search['val_accuracy']:.2f} in {search['seconds']['train']:.0f} s of training.")
    console.print(f"3. {len(_COMPARED)} trainings with the same data, recipe and {seeds} seed(s).")
    table = Table("method", "accuracy", "images/s", "time")
    for name, method, kernel in _COMPARED:
        scales = folder / "search" / "scales.safetensors" if method == "repopt" else None
        recipes = [replace(base.recipe, seed=seed, kernel=kernel) for seed in range(seeds)]
        jobs = [replace(base, method=method, recipe=recipe, scales=scales) for recipe in recipes]
        outs = [folder / f"{method}-{kernel}-{seed}" for seed in range(seeds)]
        runs = [train_run(job, path, quiet=quiet) for job, path in zip(jobs, outs, strict=True)]
        table.add_row(name, *_averages(runs))
    console.print(table)
    _write_page(folder, console)
    return 0 if equal else 1


def _show_equality(console: Console) -> bool:
    rows = [row for row in run_matrix(steps=10) if row.report.exact]
    equal = all(row.passed for row in rows)
    worst = max(row.report.worst for row in rows)
    console.print(
        f"1. The equality: {len(rows)} real blocks trained beside re-parameterized operators, "
        f"{'all equal' if equal else 'NOT EQUAL'}, worst difference {worst:.1e}."
    )
    return equal


def _averages(summaries: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Mean accuracy with its deviation, images per second, and seconds."""
    accuracies = [summary["val_accuracy"] for summary in summaries]
    deviation = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    speed = statistics.mean(summary["images_per_second"] for summary in summaries)
    seconds = statistics.mean(summary["seconds"]["train"] for summary in summaries)
    return f"{statistics.mean(accuracies):.2f}{deviation}", f"{speed:,.0f}", f"{seconds:.1f} s"


def _write_page(folder: Path, console: Console) -> None:
    runs = sorted(path for path in folder.iterdir() if (path / "recipe.json").exists())
    try:
        from repopt.report import write_report

        page = write_report(runs, folder / "report.html", title="repopt demo")
        console.print(f"report: {page.resolve()}", soft_wrap=True)
    except ImportError as error:
        console.print(f"no report: {error}")


def _names(out: Path) -> Iterator[Path]:
    yield out
    number = 2
    while True:
        yield out.with_name(f"{out.name}-{number}")
        number += 1
