"""A table of the paper on public data: rows that are each measured once, and how they are shown."""

import csv
import fnmatch
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from paper.jobs import FIRST_SEED, SEARCH_SEED, SEARCHED_AGAIN, Lines, Scope, Training
from paper.view import Record, View, matching, read_rows
from paper.workshop import FIGURES, Workshop
from repopt.device import commit, environment
from repopt.files import append_csv, are_some_of
from repopt.plans.choices import instead_of
from repopt.train.stopping import DivergedError

# {what a user types: where it is declared}, in the order of docs/paper-tables.md
NAMES = {
    **{"table2": "table2:TABLE2", "table3": "table2:TABLE3", "table4": "table4:TABLE4"},
    **{"table4_cpu": "evidence:TABLE4_CPU", "where": "evidence:WHERE", "one_run": "evidence:ONE_RUN"},
    **{
        "best": "evidence:BEST",
        "decay": "evidence:DECAY",
        "best_decay": "evidence:BEST_DECAY",
        "decay_cpu": "evidence:DECAY_CPU",
    },
    **{"adamw": "evidence:ADAMW", "adamw_cpu": "evidence:ADAMW_CPU"},
    **{"int8_mini": "evidence_int8:INT8", "qat_mini": "evidence_int8:QAT"},
    **{"int8_rounding": "evidence_int8:ROUNDING", "int8_rounding_cpu": "evidence_int8:ROUNDING_CPU"},
    **{"constants": "studies:CONSTANTS", "multipliers": "scale_figures:MULTIPLIERS", "a0": "studies:A0"},
    **{"table5": "studies:TABLE5", "table6": "studies:TABLE6", "tableB": "studies:TABLE_B"},
    "table7": "table7:TABLE7",
    **{"figureE": "scale_figures:FIGURE_E", "table8": "table8:TABLE8", "tableC": "table8:TABLE_C"},
    "histograms": "histograms:HISTOGRAMS",
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

    @property
    def texts(self) -> dict[str, str]:
        """Its key, as a CSV file has it."""
        return {column: "" if value is None else str(value) for column, value in self.key.items()}

    def is_among(self, records: Sequence[Record]) -> bool:
        return any(self.texts.items() <= record.items() for record in records)

    def stands_in(self, path: Path) -> bool:
        """Whether a CSV file has it."""
        return self.is_among(read_rows(path))


@dataclass(frozen=True, kw_only=True)
class Table(View):
    """A table that can be measured, and how it is shown."""

    title: str
    keys: tuple[str, ...]  # the columns of the CSV file that tell rows apart
    trainings: Sequence[Training]  # a row for each of them and each seed; searches and what is not trained have one
    figures: tuple[str, ...] = FIGURES  # the other columns, of what is measured

    def __post_init__(self) -> None:
        if self.chosen_on and "outcome" not in self.figures:  # without which a diverged training would never be a row
            raise ValueError(f"{self.title!r} chooses settings by a seed, so it needs the column 'outcome'")

    def candidates(self, scope: Scope) -> list["TableRow"]:
        """The rows of the seed that chooses settings, whether the scope has it or not; none where no seed chooses."""
        return self.rows(replace(scope, seeds=(int(self.chosen_on),))) if self.chosen_on else []

    def rivals(self, row: "TableRow", candidates: Sequence["TableRow"]) -> list["TableRow"]:
        """The candidates among which the setting of a row is chosen; none where it need not be."""
        if str(row.key.get("seed")) == self.chosen_on:
            return []
        alike = {column: value for column, value in row.key.items() if column not in (*self.best, "seed")}
        rivals = [each for each in candidates if alike.items() <= each.key.items()]
        return rivals if len(rivals) > 1 else []

    def is_chosen(self, row: "TableRow", candidates: Sequence["TableRow"], records: Sequence[Record]) -> bool | None:
        """Whether a row has the setting that one seed chooses; None where that is not known yet."""
        rivals = self.rivals(row, candidates)
        tried = [matching(records, **rival.texts) for rival in rivals]
        if not all(tried):
            return None
        chosen = self.choice([*chain.from_iterable(tried)])
        return not rivals or (bool(chosen) and all(chosen[0][column] == row.texts[column] for column in self.best))

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
            too_much = scope.quick and (theirs or training.scales == SEARCHED_AGAIN or not training.in_quick)
            if not too_much and not (training.one_seed and given != FIRST_SEED):
                known = {"model": scope.model(training.model), "seed": seed, **training.key}
                key = {column: known.get(column) for column in self.keys}
                row = TableRow(key=key, measure=partial(training.measure, training, scope, seed), authors=theirs)
                rows[row.name] = row
        return list(rows.values())


def table_named(name: str) -> Table:
    if name not in NAMES:
        raise ValueError(f"there is no table {name!r}: {instead_of(name, NAMES)}")
    table: Table = resolve_name(f"paper.{NAMES[name]}")
    return table


def rows_left(table: Table, scope: Scope, path: Path, only: str = "*") -> tuple[list[TableRow], int]:
    """The rows to measure, of those whose names match a pattern such as `RepOpt*`, and how many are there."""
    rows = table.rows(scope)
    wanted = [row for row in rows if fnmatch.fnmatch(row.name, only)]
    if rows and not wanted:
        raise ValueError(f"{path.stem} has no row named {only!r}; one is {rows[0].name!r}")
    records = read_rows(path)
    candidates = table.candidates(scope)
    wanted = [row for row in wanted if table.is_chosen(row, candidates, records) is not False]
    left = [row for row in wanted if not row.is_among(records)]
    return left, len(wanted) - len(left)


def rows_missing(table: Table, scope: Scope, path: Path) -> list[TableRow]:
    """The rows to measure, but for those of settings that have as many seeds as the scope, whichever these are."""
    records = read_rows(path)

    def seeds(row: TableRow) -> int:
        setting = {column: text for column, text in row.texts.items() if column != "seed"}
        return len({record["seed"] for record in matching(records, **setting)})

    return [row for row in rows_left(table, scope, path)[0] if seeds(row) < len(scope.seeds)]


def reproduce(table: Table, scope: Scope, workshop: Workshop, path: Path, only: str = "*") -> list[TableRow]:
    """Measures the missing rows whose names match, each written at once; returns those that other processes are at."""
    for each in chain.from_iterable((training, training.scales) for training in table.trainings):
        if isinstance(each, Training) and each.data:
            for name in filter(None, (each.data, each.fine_tuned_on)):
                scope.data(name)  # or say which is missing
    columns = next(csv.reader(path.read_text().splitlines()), []) if path.exists() else []
    if not are_some_of(columns, table.header):  # said now, rather than after minutes of training
        raise ValueError(f"{str(path)!r} has different columns from {path.stem}: give another --out")
    left, standing = rows_left(table, scope, path, only)
    candidates, records = table.candidates(scope), read_rows(path)
    most = "at most " if any(table.is_chosen(row, candidates, records) is None for row in left) else ""
    print(f"{table.title}: {standing} rows stand in {path}, {most}{len(left)} to go", flush=True)
    rows = [row for row in left if scope.authors is not None or not row.authors]
    elsewhere: list[TableRow] = []
    if len(rows) < len(left):
        print(f"left out without --authors: {len(left) - len(rows)} rows")
    waiting, asked = True, {row.name for row in rows}
    known = asked | {rival.name for rival in candidates if rival.is_among(records)}
    blind = [row for row in rows if not all(rival.name in known for rival in table.rivals(row, candidates))]
    if blind:
        print(f"left out until seed {table.chosen_on} has chosen their settings: {len(blind)} rows")
        rows = [row for row in rows if row not in blind]
    while waiting:  # for the first seed of another process, which chooses what the others are trained with
        waiting = False
        elsewhere.clear()
        for number, row in enumerate(rows, start=1):
            chosen = table.is_chosen(row, candidates, read_rows(path))
            waiting |= chosen is None
            if not chosen:
                continue
            # a claim is for this file: the same row of another one is measured there
            claimed = hashlib.sha256(f"{row.name} {path.resolve()}".encode()).hexdigest()[:12]
            with workshop.claim(f"{path.stem}-{claimed}") as mine:
                if not mine:
                    elsewhere.append(row)
                elif not row.stands_in(path):  # another process may have finished it meanwhile
                    print(f"{number}/{len(rows)}  {row.name}", flush=True)
                    _write_row(table, row, workshop, path)
        if waiting:
            time.sleep(1)
    return elsewhere


def _write_row(table: Table, row: TableRow, workshop: Workshop, path: Path) -> None:
    start = time.perf_counter()
    try:
        lines = row.measure(workshop)
    except DivergedError as error:  # an outcome too, where the table has a column for it
        if "outcome" not in table.figures:
            print(f"    left out: {error}")
            return
        lines = [{"outcome": str(error), **environment(workshop.chosen_device)}]
    found = [{"commit": commit(), **line, **row.key} for line in lines]  # the training's commit, or the current one
    append_csv(path, [{column: line.get(column) for column in table.header} for line in found])
    accuracies = dict.fromkeys(line["val_accuracy"] for line in found if line.get("val_accuracy") is not None)
    if accuracies:
        passed = time.perf_counter() - start
        print(f"    accuracy {', '.join(f'{each:.2f}' for each in accuracies)} in {passed:.0f} s", flush=True)
