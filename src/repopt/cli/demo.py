"""`repopt demo`: the whole story on embedded data, in minutes on two CPU cores."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
    """Prove the equality, search scales, train four ways, and write a report: minutes on a CPU.

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
    recipe = replace(demo(), epochs=epochs)
    folder = next(path for path in _names(out) if not path.exists())
    console = Console()
    rows = [row for row in run_matrix(steps=10) if row.report.exact]
    equal = all(row.passed for row in rows)
    worst = max(row.report.worst for row in rows)
    console.print(
        f"1. The equality: {len(rows)} real blocks trained beside re-parameterized operators, "
        f"{'all equal' if equal else 'NOT EQUAL'}, worst difference {worst:.1e}."
    )
    console.print(f"2. Hyper-Search of {model} on digits.")
    search = train_run(Job(method="search", model=model, data="digits", recipe=recipe), folder / "search", quiet=quiet)
    console.print(f"   accuracy {search['val_accuracy']:.2f} in {search['seconds']['train']:.0f} s of training.")
    console.print(f"3. {len(_COMPARED)} trainings with the same data, recipe and {seeds} seed(s).")
    table = Table("method", "accuracy", "images/s", "time")
    for name, method, kernel in _COMPARED:
        scales = folder / "search" / "scales.safetensors" if method == "repopt" else None
        summaries = [
            train_run(
                Job(
                    method=method,
                    model=model,
                    data="digits",
                    recipe=replace(recipe, seed=seed, kernel=kernel),
                    scales=scales,
                ),
                folder / f"{method}-{kernel}-{seed}",
                quiet=quiet,
            )
            for seed in range(seeds)
        ]
        accuracies = [summary["val_accuracy"] for summary in summaries]
        deviation = f" ± {statistics.stdev(accuracies):.2f}" if seeds > 1 else ""
        speed = statistics.mean(summary["images_per_second"] for summary in summaries)
        time = statistics.mean(summary["seconds"]["train"] for summary in summaries)
        table.add_row(name, f"{statistics.mean(accuracies):.2f}{deviation}", f"{speed:,.0f}", f"{time:.1f} s")
    console.print(table)
    runs = sorted(path for path in folder.iterdir() if (path / "recipe.json").exists())
    try:
        from repopt.report import write_report

        page = write_report(runs, folder / "report.html", title="repopt demo")
        console.print(f"report: {page.resolve()}", soft_wrap=True)
    except ImportError as error:
        console.print(f"no report: {error}")
    return 0 if equal else 1


def _names(out: Path) -> Iterator[Path]:
    yield out
    number = 2
    while True:
        yield out.with_name(f"{out.name}-{number}")
        number += 1
