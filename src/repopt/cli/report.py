"""`repopt report`: one page about runs."""

from pathlib import Path

import tyro

from repopt.report import write_report
from repopt.report.comparison import group_runs, limits
from repopt.train.records import read_run


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]], *, out: Path = Path("report.html"), title: str | None = None
) -> int:
    """Write one HTML page about a run, or about several side by side.

    Example: repopt report runs/demo/*/ --out report.html

    Args:
        runs: run folders.
        out: the page.
        title: the headline.
    """
    page = write_report(runs, out, title=title)
    for sentence in limits(group_runs(read_run(folder) for folder in runs)):
        print(f"note: {sentence[0].lower()}{sentence[1:].rstrip('.')}")
    print(page)
    return 0
