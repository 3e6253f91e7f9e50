"""A table of the paper on public data: rows that are each measured once, and how they are shown."""

import csv
import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from paper.jobs import SEARCH_SEED, SEARCHED_AGAIN, HyperSearch, Scope, Training, search_job, training_job
from paper.view import Record, View, read_rows
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.device import commit, environment
from repopt.files import append_csv
from repopt.plans.scales import Scales
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
        authors: whether it needs the scales that the paper's authors released.
    """

    key: Mapping[str, Any]
    measure: Callable[[Workshop], Sequence[Mapping[str, Any]]]
    authors: bool = False

    @property
    def name(self) -> str:
        return ", ".join(str(value) for value in self.key.values() if value not in (None, ""))


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that can be measured.

    Attributes:
        title: what it is about.
        keys: the columns of the CSV file that tell rows apart.
        view: how the rows are shown.
        trainings: a row for each of them and each seed.
        read: the lines of a finished training, from its run; a single one unless given.
        weights: whether these need the trained weights, which are large.
        others: the rows that are no training, within a scope.
        figures: the other columns, of what is measured; those of a training unless given.
        drawings: figures from the same rows, {name of the file: SVG}; they need the extra `report`.
    """

    title: str
    keys: tuple[str, ...]
    view: View
    trainings: Sequence[Training] = ()
    read: Callable[[Scope, Workshop, Path], list[dict[str, Any]]] = lambda _scope, _workshop, run: [figures_of(run)]
    weights: bool = False
    others: Callable[[Scope], Iterable[TableRow]] = lambda _: ()
    figures: tuple[str, ...] = FIGURES
    drawings: Callable[[Sequence[Record]], Mapping[str, str]] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the CSV file."""
        return tuple(dict.fromkeys((*self.keys, *self.figures, "commit")))

    @property
    def data(self) -> list[str]:
        """The data of its trainings and their searches."""
        on = [each for training in self.trainings for each in (training, training.scales)]
        return sorted({each.data for each in on if isinstance(each, Training | HyperSearch)})

    def rows(self, scope: Scope) -> list[TableRow]:
        """What is measured, seed by seed. Trainings that differ only in the model are one where all models are nano."""
        rows = []
        for seed in scope.seeds:
            for training in self.trainings:
                theirs = training.scales == "authors"
                too_much = scope.quick and (theirs or training.scales == SEARCHED_AGAIN)
                if not too_much and not (training.one_seed and seed != scope.seeds[0]):
                    own = SEARCH_SEED if training.method == "search" else seed
                    known = {**training.key, "model": scope.model(training.model), "seed": own}
                    key = {column: known.get(column) for column in self.keys}
                    measure = partial(self._measure, scope, training, seed)
                    rows.append(TableRow(key=key, measure=measure, authors=theirs))
        return list({row.name: row for row in (*rows, *self.others(scope))}.values())

    def _measure(self, scope: Scope, training: Training, seed: int, workshop: Workshop) -> list[dict[str, Any]]:
        """What a training measured, and the search of its scales where the table has columns for it."""
        job = training_job(scope, workshop, training, seed)
        lines = self.read(scope, workshop, workshop.run(job, weights=self.weights))
        if "search_accuracy" in self.figures and isinstance(training.scales, HyperSearch):
            search = search_job(scope, job.model, training.scales)
            assert isinstance(job.scales, Scales)
            searched, fitted = (sum(map(len, scales.values())) for scales in (workshop.searched(search), job.scales))
            accuracy = figures_of(workshop.run(search))["val_accuracy"]
            lines = [{**line, "search_accuracy": accuracy, "dropped_identities": searched - fitted} for line in lines]
        return lines


def table_named(name: str) -> Table:
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}; there is {', '.join(NAMES)}")
    table: Table = import_module(f"paper.{NAMES[name]}").TABLE
    return table


def reproduce(table: Table, scope: Scope, workshop: Workshop, path: Path, only: str = "*") -> list[TableRow]:
    """Measures what is missing of a table, and says what it is at.

    Args:
        table: what to measure.
        scope: on what.
        workshop: where.
        path: the CSV file.
        only: a pattern for the names of the rows.

    Returns:
        The rows that other processes are measuring.
    """
    for name in table.data:
        scope.data(name)
    columns = next(csv.reader(path.read_text().splitlines()), []) if path.exists() else []
    if columns and columns != list(table.columns):  # said now, rather than after minutes of training
        raise ValueError(f"{str(path)!r} has different columns from {path.stem}: give another --out")
    left, standing = rows_left(table, scope, path, only)
    print(f"{table.title}: {standing} rows stand in {path}, {len(left)} to go")
    rows = [row for row in left if scope.authors is not None or not row.authors]
    if len(rows) < len(left):
        print(f"left out without --authors: {len(left) - len(rows)} rows")
    return measure_rows(table, rows, path, workshop)


def rows_left(table: Table, scope: Scope, path: Path, only: str = "*") -> tuple[list[TableRow], int]:
    """The rows to measure, of those whose names match a pattern such as `RepOpt*`, and how many are there."""
    rows = table.rows(scope)
    wanted = [row for row in rows if fnmatch.fnmatch(row.name, only)]
    if not wanted:
        raise ValueError(f"{path.stem} has no row named {only!r}; one is {rows[0].name!r}")
    left = [row for row in wanted if not _stands(row, path)]
    return left, len(wanted) - len(left)


def measure_rows(table: Table, rows: Sequence[TableRow], path: Path, workshop: Workshop) -> list[TableRow]:
    """Measures rows one by one, each written at once; returns those that other processes are measuring."""
    elsewhere = []
    for number, row in enumerate(rows, start=1):
        # a claim is for this file: the same row of another one is measured there
        claimed = hashlib.sha256(f"{row.name} {path.resolve()}".encode()).hexdigest()[:12]
        with workshop.claim(f"{path.stem}-{claimed}") as mine:
            if not mine:
                elsewhere.append(row)
            if not mine or _stands(row, path):
                continue
            print(f"{number}/{len(rows)}  {row.name}", flush=True)
            try:
                lines = row.measure(workshop)
            except DivergedError as error:  # an outcome too, where the table has a column for it
                if "outcome" not in table.figures:
                    print(f"    left out: {error}")
                    continue
                lines = [{"outcome": str(error), **environment(workshop.chosen_device)}]
            # the commit is the training's, or the current one
            found = [{"commit": commit(), **line, **row.key} for line in lines]
            records = [{column: line.get(column) for column in table.columns} for line in found]
            append_csv(path, records)
            accuracies = [record["val_accuracy"] for record in records if record.get("val_accuracy") is not None]
            if accuracies:
                print(f"    accuracy {', '.join(f'{each:.2f}' for each in accuracies)}", flush=True)
    return elsewhere


def _stands(row: TableRow, path: Path) -> bool:
    wanted = {column: "" if value is None else str(value) for column, value in row.key.items()}
    return any(all(record.get(column) == value for column, value in wanted.items()) for record in read_rows(path))
