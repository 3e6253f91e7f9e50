"""A table of the paper, ours beside it: rows that are each measured once, and what the page says about them."""

import csv
import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper.scope import Scope
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.device import commit, environment
from repopt.files import append_csv
from repopt.train.loop import DivergedError
from repopt.train.training import Job

if TYPE_CHECKING:
    from paper.claims import Claim

Record = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is measured in one go: a line of a table, or several that belong together.

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
    """A table that can be run again.

    Attributes:
        name: what a user types.
        title: of its part of the page.
        keys: the columns that tell rows apart.
        figures: the other columns; those of a training unless given.
        rows: what is measured, within a scope.
        data: the data that it needs, as the fields of a scope are called.
        part: its part of the page, as lines of Markdown, from the rows of its CSV file.
        verdict: what the rows say, in a sentence for the top of the page; None while they say too little.
        claims: what the paper says of this table, beside what the rows say.
        drawings: figures from the same rows, {name of the file: SVG}; they need the extra `report`.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    rows: Callable[[Scope], Iterable[Row]]
    part: Callable[[Sequence[Record]], list[str]]
    data: tuple[str, ...] = ("cifar100", "imagenette")
    figures: tuple[str, ...] = FIGURES
    verdict: Callable[[Sequence[Record]], str | None] = lambda rows: None
    claims: Callable[[Sequence[Record]], Sequence["Claim"]] = lambda rows: ()
    drawings: Callable[[Sequence[Record]], Mapping[str, str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is left of a table.

    Attributes:
        rows: that do not stand in the CSV file.
        standing: how many do.
    """

    rows: tuple[Row, ...]
    standing: int

    @property
    def minutes(self) -> float:
        searches = {name: minutes for row in self.rows for name, minutes in row.searches.items()}
        return sum(row.minutes for row in self.rows) + sum(searches.values())


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def work_left(table: Table, scope: Scope, path: Path, only: str = "*") -> Work:
    """The rows that still have to be measured.

    Args:
        table: which.
        scope: on what.
        path: the table's CSV file.
        only: a pattern for the names of the rows, such as `RepOpt*`.
    """
    rows = [row for row in table.rows(scope) if fnmatch.fnmatch(row.name, only)]
    if not rows:
        raise ValueError(f"{table.name} has no row named {only!r}; one is {next(iter(table.rows(scope))).name!r}")
    left = tuple(row for row in rows if not _stands(row, path))
    return Work(rows=left, standing=len(rows) - len(left))


def check_columns(table: Table, path: Path) -> None:
    """Raises unless rows of the table can be appended to the file: now, rather than after minutes of training."""
    columns = next(csv.reader(path.read_text().splitlines()), []) if path.exists() else []
    if columns and columns != list(_columns(table)):
        raise ValueError(f"{str(path)!r} has other columns than {table.name}: give another --out")


def measure_rows(
    table: Table, rows: Sequence[Row], path: Path, workshop: Workshop, tell: Callable[[str], None]
) -> list[Row]:
    """Measures rows one by one, each written as soon as it is there; returns those that other processes are at."""
    elsewhere = []
    for number, row in enumerate(rows, start=1):
        # of this file: the same row of another one is measured there
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


def training_row(
    key: Mapping[str, Any],
    job: Callable[[Workshop], Job],
    *,
    minutes: float,
    searches: Mapping[str, float] | None = None,
    authors: bool = False,
) -> Row:
    """A row that is the outcome of one training."""

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        return [figures_of(workshop.run(job(workshop)))]

    return Row(key=key, measure=measure, minutes=minutes, searches=searches or {}, authors=authors)


def _record(table: Table, row: Row, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the CSV file, with all columns of the table; the commit is the training's, or that of now."""
    columns = _columns(table)
    record = {"commit": commit(), **row.key, **figures}
    assert set(record) <= set(columns), f"{table.name} has no columns {set(record) - set(columns)}"
    return {**columns, **record}


def _columns(table: Table) -> dict[str, Any]:
    """The columns of the table's CSV file, empty."""
    return dict.fromkeys((*table.keys, *table.figures, "commit"))


def _stands(row: Row, path: Path) -> bool:
    wanted = {column: "" if value is None else str(value) for column, value in row.key.items()}
    return any(all(record.get(column) == value for column, value in wanted.items()) for record in read_rows(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
