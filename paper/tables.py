"""A table of the paper on public data: rows that are each measured once, and how they are shown."""

import csv
import fnmatch
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from paper.jobs import SEARCH_SEED, SEARCHED_AGAIN, Lines, Scope, Training
from paper.view import View, read_rows
from paper.workshop import FIGURES, Workshop
from repopt.device import commit, environment
from repopt.files import append_csv, are_some_of
from repopt.train.loop import DivergedError

# {what a user types: where it is declared}, in the order of docs/results.md
NAMES = {
    **{"table2": "table2:TABLE2", "table3": "table2:TABLE3", "table4": "table4:TABLE4"},
    **{"constants": "studies:CONSTANTS", "multipliers": "scale_figures:MULTIPLIERS", "a0": "studies:A0"},
    **{"table5": "studies:TABLE5", "table6": "studies:TABLE6", "tableB": "studies:TABLE_B"},
    **{"figureE": "scale_figures:FIGURE_E", "table8": "table8:TABLE8", "tableC": "table8:TABLE_C"},
    **{"tableD": "table4:TABLE_D", "conventions": "studies:CONVENTIONS", "zoo": "studies:ZOO"},
}


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """What is measured in one go: a line of a CSV file, or several that belong together."""

    key: Mapping[str, Any]  # what tells it from the others, column by column
    measure: Callable[[Workshop], Lines]
    authors: bool = False  # whether it needs the scales that the paper's authors released

    @property
    def name(self) -> str:
        return ", ".join(str(value) for value in self.key.values() if value not in (None, ""))

    def stands_in(self, path: Path) -> bool:
        """Whether a CSV file has it."""
        wanted = {column: "" if value is None else str(value) for column, value in self.key.items()}
        return any(wanted.items() <= record.items() for record in read_rows(path))


@dataclass(frozen=True, kw_only=True)
class Table(View):
    """A table that can be measured, and how it is shown."""

    title: str
    keys: tuple[str, ...]  # the columns of the CSV file that tell rows apart
    trainings: Sequence[Training]  # a row for each of them and each seed; searches and what is not trained have one
    figures: tuple[str, ...] = FIGURES  # the other columns, of what is measured

    @property
    def header(self) -> list[str]:
        """The columns of the CSV file."""
        return list(dict.fromkeys((*self.keys, *self.figures, "commit")))

    def rows(self, scope: Scope) -> list[TableRow]:
        """What is measured, seed by seed. Trainings that differ only in the model are one where all models are nano."""
        rows: dict[str, TableRow] = {}
        for given, training in product(scope.seeds, self.trainings):
            seed = given if training.data and training.method != "search" else SEARCH_SEED
            theirs = training.scales == "authors"
            too_much = scope.quick and (theirs or training.scales == SEARCHED_AGAIN)
            if not too_much and not (training.one_seed and given != scope.seeds[0]):
                known = {"model": scope.model(training.model), "seed": seed, **training.key}
                key = {column: known.get(column) for column in self.keys}
                row = TableRow(key=key, measure=partial(training.measure, training, scope, seed), authors=theirs)
                rows[row.name] = row
        return list(rows.values())


def table_named(name: str) -> Table:
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}; there is {', '.join(NAMES)}")
    table: Table = resolve_name(f"paper.{NAMES[name]}")
    return table


def rows_left(table: Table, scope: Scope, path: Path, only: str = "*") -> tuple[list[TableRow], int]:
    """The rows to measure, of those whose names match a pattern such as `RepOpt*`, and how many are there."""
    rows = table.rows(scope)
    wanted = [row for row in rows if fnmatch.fnmatch(row.name, only)]
    if not wanted:
        raise ValueError(f"{path.stem} has no row named {only!r}; one is {rows[0].name!r}")
    left = [row for row in wanted if not row.stands_in(path)]
    return left, len(wanted) - len(left)


def reproduce(table: Table, scope: Scope, workshop: Workshop, path: Path, only: str = "*") -> list[TableRow]:
    """Measures the missing rows whose names match, each written at once; returns those that other processes are at."""
    for each in chain.from_iterable((training, training.scales) for training in table.trainings):
        if isinstance(each, Training) and each.data:
            scope.data(each.data)  # or say which is missing
    columns = next(csv.reader(path.read_text().splitlines()), []) if path.exists() else []
    if not are_some_of(columns, table.header):  # said now, rather than after minutes of training
        raise ValueError(f"{str(path)!r} has different columns from {path.stem}: give another --out")
    left, standing = rows_left(table, scope, path, only)
    print(f"{table.title}: {standing} rows stand in {path}, {len(left)} to go")
    rows, elsewhere = [row for row in left if scope.authors is not None or not row.authors], []
    if len(rows) < len(left):
        print(f"left out without --authors: {len(left) - len(rows)} rows")
    for number, row in enumerate(rows, start=1):
        # a claim is for this file: the same row of another one is measured there
        claimed = hashlib.sha256(f"{row.name} {path.resolve()}".encode()).hexdigest()[:12]
        with workshop.claim(f"{path.stem}-{claimed}") as mine:
            if not mine:
                elsewhere.append(row)
            elif not row.stands_in(path):  # another process may have finished it meanwhile
                print(f"{number}/{len(rows)}  {row.name}", flush=True)
                _write_row(table, row, workshop, path)
    return elsewhere


def _write_row(table: Table, row: TableRow, workshop: Workshop, path: Path) -> None:
    try:
        lines = row.measure(workshop)
    except DivergedError as error:  # an outcome too, where the table has a column for it
        if "outcome" not in table.figures:
            print(f"    left out: {error}")
            return
        lines = [{"outcome": str(error), **environment(workshop.chosen_device)}]
    found = [{"commit": commit(), **line, **row.key} for line in lines]  # the training's commit, or the current one
    append_csv(path, [{column: line.get(column) for column in table.header} for line in found])
    accuracies = [line["val_accuracy"] for line in found if line.get("val_accuracy") is not None]
    if accuracies:
        print(f"    accuracy {', '.join(f'{each:.2f}' for each in accuracies)}", flush=True)
