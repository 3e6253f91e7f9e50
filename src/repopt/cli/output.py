"""What several commands take and print."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from repopt.train.training import Job

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


def say_before(job: "Job", out: Path, *, resume: bool, quiet: bool) -> None:
    """Prints what a user may not expect of the run that is about to start."""
    from repopt.train.distributed import is_first_process

    if quiet or not is_first_process():
        return
    if not resume and job.scales == job.model:
        print(f"note: the scales are those that ship for {job.model}")
    if resume and (out / "summary.json").exists():
        print(f"note: the run in {out} is finished, and nothing more is trained: for other settings give another --out")
    elif resume and (out / "recipe.json").exists():
        print("note: the run goes on with its own settings, and other flags are ignored")
    elif not resume and job.recipe.warmup_epochs >= job.recipe.epochs:
        print(
            f"note: the warm-up of {job.recipe.warmup_epochs:g} epochs does not end within {job.recipe.epochs}: for a "
            "quick try give --warmup-epochs 0"
        )


def conclude(out: Path, summary: dict[str, Any]) -> None:
    """Prints the accuracy, where the time went, and where the report is."""
    seconds = "  ".join(f"{name} {value:.1f} s" for name, value in summary["seconds"].items())
    print(
        f"accuracy {summary['val_accuracy']:.2f} (best {summary['best_val_accuracy']:.2f} after epoch "
        f"{summary['best_epoch']}), {summary['images_per_second']:,.0f} images/s"
    )
    print(f"time: {seconds}")
    try:
        from repopt.report import write_report

        print(f"report: {write_report([out], out / 'report.html')}")
    except ImportError as error:
        print(f"no report: {error}")
    print(f"run: {out}")
