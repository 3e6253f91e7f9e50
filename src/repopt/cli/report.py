"""`repopt report`: one page about runs."""

from pathlib import Path

import tyro

from repopt.report import write_report


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
    print(write_report(runs, out, title=title))
    return 0
