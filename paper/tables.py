"""A table of the paper on public data: rows that are each measured once, and how they are shown."""

import csv
import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from paper.rows import Record, read_rows
from paper.scope import Scope
from paper.view import View
from paper.workshop import FIGURES, Workshop
from repopt.device import commit, environment
from repopt.files import append_csv
from repopt.train.loop import DivergedError

# {what a user types: the module}, in the order of docs/results.md
NAMES = {
    **{name: name for name in ("table2", "table3", "table4", "constants", "multipliers", "a0", "table5", "table6")},
    **{"tableB": "table_b", "figureE": "figure_e", "table8": "table8", "tableC": "table_c", "tableD": "table_d"},
    **{name: name for name in ("conventions", "zoo")},
}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """What is measured in one go: a line of a CSV file, or several that belong together.

    Attributes:
        key: what tells it from the others, column by column.
        measure: takes the figures, line by line.
        minutes: that this takes on one H200.
        searches: that it needs and may share with other rows, {name: minutes}.
        authors: whether it needs the scales that the paper's authors released.
    """

    key: Mapping[str, Any]
    measure: Callable[[Workshop], Sequence[Mapping[str, Any]]]
    minutes: float
    searches: Mapping[str, float] = field(default_factory=dict)
    authors: bool = False

    @property
    def name(self) -> str:
        return ", ".join(str(value) for value in self.key.values() if value not in (None, ""))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be measured.

    Attributes:
        name: what a user types.
        title: what it is about.
        keys: the columns of the CSV file that tell rows apart.
        rows: what is measured, within a scope.
        view: how the rows are shown.
        data: the data that it needs, by the names of a scope's fields.
        figures: the other columns; those of a training unless given.
        drawings: figures from the same rows, {name of the file: SVG}; they need the extra `report`.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    rows: Callable[[Scope], Iterable[TableRow]]
    view: View
    data: tuple[str, ...] = ("cifar100", "imagenette")
    figures: tuple[str, ...] = FIGURES
    drawings: Callable[[Sequence[Record]], Mapping[str, str]] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the CSV file."""
        return tuple(dict.fromkeys((*self.keys, *self.figures, "commit")))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left of a table: the rows that are missing in the CSV file, and how many are there."""

    rows: tuple[TableRow, ...]
    standing: int

    @property
    def minutes(self) -> float:
        searches = {name: minutes for row in self.rows for name, minutes in row.searches.items()}
        return sum(row.minutes for row in self.rows) + sum(searches.values())


def table_named(name: str) -> Table:
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}; there is {', '.join(NAMES)}")
    table: Table = import_module(f"paper.{NAMES[name]}").TABLE
    return table


def reproduce(
    name: str, scope: Scope, workshop: Workshop, results: Path, *, only: str = "*", tell: Callable[[str], None] = print
) -> list[TableRow]:
    """Measures what is missing of a table, and writes its CSV file.

    Args:
        name: of the table.
        scope: on what.
        workshop: where.
        results: folder of the CSV files.
        only: a pattern for the names of the rows.
        tell: hears what is going on.

    Returns:
        The rows that other processes are measuring.
    """
    table, path = table_named(name), results / f"{name}.csv"
    scope.check(table.data)
    columns = next(csv.reader(path.read_text().splitlines()), []) if path.exists() else []
    if columns and columns != list(table.columns):  # said now, rather than after minutes of training
        raise ValueError(f"{str(path)!r} has other columns than {name}: give another --out")
    work = work_left(table, scope, path, only)
    minutes = "" if scope.quick or not work.rows else f", about {max(1, round(work.minutes))} minutes on one H200"
    tell(f"{table.title}: {work.standing} rows stand in {path}, {len(work.rows)} to go{minutes}")
    rows = [row for row in work.rows if scope.authors is not None or not row.authors]
    if len(rows) < len(work.rows):
        tell(f"left out without --authors: {len(work.rows) - len(rows)} rows")
    return measure_rows(table, rows, path, workshop, tell)


def work_left(table: Table, scope: Scope, path: Path, only: str = "*") -> Work:
    """The rows that still have to be measured, of those whose names match a pattern such as `RepOpt*`."""
    rows = [row for row in table.rows(scope) if fnmatch.fnmatch(row.name, only)]
    if not rows:
        raise ValueError(f"{table.name} has no row named {only!r}; one is {next(iter(table.rows(scope))).name!r}")
    left = tuple(row for row in rows if not _stands(row, path))
    return Work(rows=left, standing=len(rows) - len(left))


def measure_rows(
    table: Table, rows: Sequence[TableRow], path: Path, workshop: Workshop, tell: Callable[[str], None]
) -> list[TableRow]:
    """Measures rows one by one, each written at once; returns those that other processes are measuring."""
    elsewhere = []
    for number, row in enumerate(rows, start=1):
        # a claim is for this file: the same row of another one is measured there
        with workshop.claim(f"{table.name}-{_slug(row.name)}-{_digest(path)}") as mine:
            if not mine:
                elsewhere.append(row)
            if not mine or _stands(row, path):
                continue
            tell(f"{number}/{len(rows)}  {row.name}")
            try:
                lines = row.measure(workshop)
            except DivergedError as error:  # an outcome too, where the table has a column for it
                if "outcome" not in table.figures:
                    tell(f"    left out: {error}")
                    continue
                lines = [{"outcome": str(error), **environment(workshop.chosen_device)}]
            append_csv(path, [_record(table, row, figures) for figures in lines])
            accuracies = [f"{line['val_accuracy']:.2f}" for line in lines if line.get("val_accuracy") is not None]
            if accuracies:
                tell(f"    accuracy {', '.join(accuracies)}")
    return elsewhere


def _record(table: Table, row: TableRow, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV file, with all columns of the table; the commit is the training's, or the current one."""
    record = {"commit": commit(), **row.key, **figures}
    assert set(record) <= set(table.columns), f"{table.name} has no columns {set(record) - set(table.columns)}"
    return {**dict.fromkeys(table.columns), **record}


def _stands(row: TableRow, path: Path) -> bool:
    wanted = {column: "" if value is None else str(value) for column, value in row.key.items()}
    return any(all(record.get(column) == value for column, value in wanted.items()) for record in read_rows(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
