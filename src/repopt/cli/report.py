"""`repopt report`: one page about runs."""

from pathlib import Path

import tyro

from repopt.report import write_report
from repopt.report.comparison import compared_epochs, group_runs
from repopt.train.records import read_run


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]], *, out: Path = Path("report.html"), title: str | None = None
) -> int:
    """Write one HTML page about a run, or about several side by side.

    Example: repopt report runs/demo/* --out report.html

    Args:
        runs: run folders.
        out: the page.
        title: the headline.
    """
    page = write_report(runs, out, title=title)
    epochs = compared_epochs(group_runs(read_run(folder) for folder in runs))
    if len(epochs) > 1:
        print(f"note: the runs were trained for unequal numbers of epochs ({', '.join(map(str, epochs))})")
    print(page)
    return 0
