"""The tables that `repopt analyze` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paper.kernels import POSITIONS, RunKernels
from paper.ranks import RankCorrelation
from repopt.report.searches import Search, over_epochs

Rows = Sequence[Mapping[str, Any]]


def print_kernels(runs: Sequence[RunKernels], rows: Rows) -> None:
    table = _table("Standard deviation of a 3x3 kernel (in brackets: at initialization)")
    table.add_column("kernel", overflow="fold")
    for position in POSITIONS:
        table.add_column(position, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(f"[bold]{escape(run.run)}")
        for row in rows:
            if row["run"] == run.run:
                numbers = [f"{row[position]:.4f} ({row[f'{position}_at_init']:.4f})" for position in POSITIONS]
                table.add_row(f"  {row['kernel']}", *numbers)
    Console().print(table)
    for layer in dict.fromkeys(str(run.layer) for run in runs):
        print(f"layer: {layer}")


def print_variance(means: Mapping[str, Mapping[int, tuple[float, float]]], sentence: str) -> None:
    table = _table("Identity variance ratio, mean ± deviation over seeds")
    table.add_column("block", justify="right")
    for model in means:
        table.add_column(model, justify="right")
    for block in next(iter(means.values())):
        cells = (f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in (by[block] for by in means.values()))
        table.add_row(str(block), *cells)
    Console().print(table)
    Console(highlight=False).print(sentence)


def print_scales(searches: Sequence[Search], correlations: Sequence[RankCorrelation], operator: str) -> None:
    table = _table(f"Mean of the scales of {operator}, from start to end")
    table.add_column("search", overflow="fold")
    table.add_column("data", overflow="fold")
    curves = [over_epochs(search.history, operator) for search in searches]
    for branch in curves[0]:
        table.add_column(branch, justify="right", no_wrap=True)
    for search, curve in zip(searches, curves, strict=True):
        ends = [list(points.values()) for points in curve.values()]
        numbers = [f"{points[0]:.3f} -> {points[-1]:.3f}" if points else "" for points in ends]
        table.add_row(search.name, search.data, *numbers)
    Console().print(table)
    if not correlations:
        return
    table = _table("Rank correlation over channels, over operators' means, of how far each moved")
    table.add_column("searches", overflow="fold")
    table.add_column("branch")
    for column in ("channels", "operators", "moved"):
        table.add_column(column, justify="right")
    for each in correlations:
        values = (each.channels, each.operators, each.moved)
        numbers = ["constant" if value is None else f"{value:.3f}" for value in values]
        table.add_row(f"{each.first}, {each.second}", each.branch, *numbers)
    Console().print(table)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
