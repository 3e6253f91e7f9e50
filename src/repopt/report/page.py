"""The page: `write_report` puts the sections about some runs into one file."""

from collections.abc import Sequence
from pathlib import Path

from repopt.report import sections
from repopt.report.groups import group_runs
from repopt.report.int8 import int8_section
from repopt.report.runs import Run, read_run
from repopt.report.template import filled_page, write_page
from repopt.report.wording import headline, summary


def write_report(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Writes one HTML page, which needs no network and no other file, about a run or a comparison of runs.

    Args:
        runs: the folders of the runs.
        out: the page's path; what is there is replaced.
        title: the headline; what was run on what unless given.

    Returns:
        The page's path.

    Raises:
        FileNotFoundError: a folder is missing, or is not a run's.
        ValueError: no folder or one folder twice was given, or a file of a run is corrupt.
        ImportError: matplotlib is not installed.
    """
    out = Path(out)
    _check(runs, out)
    return write_page(out, render([read_run(folder) for folder in runs], title))


def render(runs: Sequence[Run], title: str | None = None) -> str:
    """The page's text."""
    groups = group_runs(runs)
    searches = [run for group in groups for run in group.runs if run.scales]
    parts = [
        sections.methods_section(groups),
        sections.curves_section(groups),
        *(sections.search_section(run, len(searches) > 1) for run in searches),
        int8_section([run.folder for run in runs]),
        sections.time_section(groups),
        sections.runs_section(groups) if len(runs) > 1 else "",
        sections.recipe_section(groups),
        sections.origin_section(groups),
    ]
    return filled_page(title or headline(groups), summary(groups), parts)


def _check(runs: Sequence[str | Path], out: Path) -> None:
    if not runs:
        raise ValueError("a report needs the folder of at least one run, and none was given")
    paths = [Path(folder).resolve() for folder in runs]
    twice = [str(folder) for folder, path in zip(runs, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise ValueError(f"the run {twice[0]!r} is given twice: name each folder once")
    if out.is_dir():
        raise ValueError(f"{str(out)!r} is a folder: name the page's file, as {str(out / 'report.html')!r}")
