"""What the rows of a CSV file say over seeds, and how they become a table of Markdown. The one renderer."""

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

Record = Mapping[str, str]
Wanted = str | Sequence[str]  # a text, or any of several

# how kernels start, and how a model is trained, as a reader knows it
INITS = {"authors": "torch's", "paper": "He's"}
METHODS = {"repopt": "RepOpt", "repvgg": "RepVGG", "qarepvgg": "QARepVGG", "branches": "real branches"}
METHODS |= {"sgd": "plain SGD", "dirac": "Dirac"}
_CLOSE = 0.5  # points between single trainings that say little: two seeds of B0 on mini-ImageNet differ by as much
_NAMES = {"init": INITS, "kernel": INITS, "method": METHODS, "trained_by": METHODS}  # by column


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The first of two means over seeds less the second."""

    mean: float
    error: float | None  # standard, unpaired since a seed does not make two trainings alike; None with a single seed

    @property
    def side(self) -> int:
        """1 or -1 where the first is ahead or behind by more than two standard errors, else 0."""
        clear = self.error is not None and abs(self.mean) > 2 * self.error
        return int(math.copysign(1, self.mean)) if clear else 0

    def __str__(self) -> str:
        return f"{self.mean:+z.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def matching(rows: Iterable[Record], **wanted: Wanted) -> list[Record]:
    """The rows whose columns hold these texts, or one of several."""
    accepted = {column: {texts} if isinstance(texts, str) else {*texts} for column, texts in wanted.items()}
    return [row for row in rows if all(row[column] in texts for column, texts in accepted.items())]


def groups(rows: Iterable[Record], *columns: str) -> dict[tuple[str, ...], list[Record]]:
    """The rows by the texts in some columns, in the order in which these first appear."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def values(rows: Iterable[Record], column: str = "val_accuracy") -> list[float]:
    return [float(row[column]) for row in rows if row.get(column)]


def mean(rows: Iterable[Record], column: str = "val_accuracy") -> float:
    found = values(rows, column)
    return statistics.mean(found) if found else math.nan


def mean_and_error(rows: Sequence[Record], column: str = "val_accuracy") -> tuple[float, float]:
    """Over the seeds; the error is the standard one of the mean, which a single seed does not tell."""
    found = values(rows, column)
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return mean(rows, column), error


def diverged(rows: Iterable[Record]) -> int:
    """How many trainings did not reach their end."""
    return sum(row.get("outcome", "finished") not in ("", "finished") for row in rows)


def best(settings: Iterable[Sequence[Record]]) -> Sequence[Record]:
    """The setting with the highest mean, of those with three seeds or most, and without a training that diverged."""
    whole = [rows for rows in settings if values(rows) and not diverged(rows)]
    enough = min(3, max(map(len, whole), default=0))  # more seeds make a setting no better
    return max((rows for rows in whole if len(rows) >= enough), key=mean, default=[])


def spread(rows: Sequence[Record], column: str = "val_accuracy") -> str:
    """Mean ± sample deviation over the seeds, with how many diverged; empty without rows."""
    found, lost = values(rows, column), diverged(rows)
    text = f"{statistics.mean(found):z.2f}" if found else ""
    text += f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{text} ({lost} of {len(rows)} diverged)".strip() if lost else text


def difference(first: Sequence[Record], second: Sequence[Record], column: str = "val_accuracy") -> Gap | None:
    """The first's mean less the second's; None where one has no figure, or a training that diverged."""
    one, other = values(first, column), values(second, column)
    if not one or not other or diverged(first) or diverged(second):
        return None
    error = _error(one, other) if len(one) > 1 and len(other) > 1 else None
    return Gap(mean=statistics.mean(one) - statistics.mean(other), error=error)


def _error(one: Sequence[float], other: Sequence[float]) -> float:
    """The standard error of a difference of means: by each group's variance or by that of both, whichever is larger.

    The variance of two or three seeds says little, and a group of few seeds may differ more than one of many.
    """
    counts, variances = (len(one), len(other)), (statistics.variance(one), statistics.variance(other))
    pooled = sum((count - 1) * own for count, own in zip(counts, variances, strict=True)) / (sum(counts) - 2)
    apart = sum(own / count for count, own in zip(counts, variances, strict=True))
    return math.sqrt(max(apart, sum(pooled / count for count in counts)))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a table, which knows all others."""

    rows: Sequence[Record]  # what it shows, a row for each seed
    tried: Sequence[Record]  # the rows of all settings, of which `rows` is the best
    table: Sequence["Line"]
    by: tuple[str, ...]  # the columns whose texts tell lines apart

    def __getitem__(self, column: str) -> str:
        return self.rows[0][column]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, what stands in the cell of a line, and on which side."""

    heading: str
    cell: Callable[[Line], object]
    right: bool = True


@dataclass(frozen=True, kw_only=True)
class View:
    """How the rows of a table are shown; lines are ordered by the columns of `by`, texts as they first appear."""

    columns: Sequence[Column | str]  # those of the rows by name; one without a single entry is left out
    by: tuple[str, ...] = ()  # columns whose texts tell lines apart, the last a line's name; else each row is a line
    best: tuple[str, ...] = ()  # the columns of settings that were tried, of which a line shows the best
    chosen_on: str = ""  # the seed that chooses the best, as `at_best` says; else the mean over all does
    where: Mapping[str, Wanted] = field(default_factory=dict)  # the rows that are shown, by the texts of their columns
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)  # another one; other texts are left out
    best_first: bool = False  # lines that `order` does not tell apart are ordered by accuracy
    csv: str = ""  # the file of the rows, where it is not named as the table is

    def choice(self, rows: Sequence[Record]) -> Sequence[Record]:
        """The rows by which one seed chooses the best setting."""
        return best(groups(matching(rows, seed=self.chosen_on), *self.best).values())

    def at_best(self, rows: Sequence[Record]) -> Sequence[Record]:
        """The rows of the best setting, where several were tried.

        Where one seed chooses, the others are shown: of its choice, or where that has none of the next best that has
        some and is about as good. Else the seed that chose is shown itself.
        """
        if not self.best:
            return rows
        settings = groups(rows, *self.best)
        if not self.chosen_on or len(settings) == 1:  # of which no seed had to choose
            return best(settings.values())
        first, chosen = groups(matching(rows, seed=self.chosen_on), *self.best), self.choice(rows)
        near = {setting: mean(found) for setting, found in first.items() if mean(found) > mean(chosen) - _CLOSE}
        for setting in sorted(near, key=near.__getitem__, reverse=True):
            if others := [row for row in settings[setting] if row["seed"] != self.chosen_on]:
                return others
        return chosen


def render(view: View, rows: Sequence[Record]) -> str:
    """The table as Markdown."""
    wanted, lines = matching(rows, **view.where, **view.order), list[Line]()
    appearing = {column: list(dict.fromkeys(row[column] for row in wanted)) for column in view.by}
    order = {**({} if view.best_first else appearing), **view.order}

    def place(rows: Sequence[Record]) -> list[float]:
        listed = [texts.index(rows[0][column]) for column, texts in order.items()]
        return [*listed, -mean(view.at_best(rows)) if view.best_first else 0]

    for tried in sorted(groups(wanted, *view.by).values() if view.by else [[row] for row in wanted], key=place):
        if shown := view.at_best(tried):
            lines.append(Line(rows=shown, tried=tried, table=lines, by=view.by))
    columns = [text(column) if isinstance(column, str) else column for column in view.columns]
    filled = [(column, [str(column.cell(line)) for line in lines]) for column in columns]
    kept = [(column.heading, "---:" if column.right else "---", *cells) for column, cells in filled if any(cells)]
    head, bars, *body = ["| " + " | ".join(cells) + " |" for cells in zip(*kept, strict=True)] or ["", ""]
    return "\n".join([head, bars.replace(" ", ""), *body]) if kept else "(not measured yet)"


def text(column: str, heading: str | None = None, names: Mapping[str, str] | None = None) -> Column:
    """The text of a column, which the rows of a line share, or a name for it."""
    known = names or _NAMES.get(column, {})
    return Column(heading or column.replace("_", " "), lambda line: known.get(line[column], line[column]), False)


SEEDS = Column("seeds", lambda line: len({row["seed"] for row in line.rows}))


def over_rows(heading: str, cell: Callable[[Sequence[Record]], object], **where: Wanted) -> Column:
    """What a line's rows say, or those whose columns hold these texts."""
    return Column(heading, lambda line: cell(matching(line.rows, **where)))


def accuracy(heading: str = "accuracy", column: str = "val_accuracy", **where: Wanted) -> Column:
    """Mean ± deviation over the seeds."""
    return over_rows(heading, lambda rows: spread(rows, column), **where)


def number(column: str, heading: str = "", form: str = "{:,.0f}", per: float = 1, **where: Wanted) -> Column:
    """The mean of a column in some unit; empty without figures."""

    def cell(rows: Sequence[Record]) -> str:
        return form.format(mean(rows, column) / per) if values(rows, column) else ""

    return over_rows(heading or column, cell, **where)


def minus(name: str, reference: Mapping[str, str] | None = None) -> Column:
    """The difference to the line of that name like this one, or to the one whose columns hold the reference's texts."""

    def cell(line: Line) -> object:
        wanted = reference or {**{column: line[column] for column in line.by}, line.by[-1]: name}
        other = next((each for each in line.table if all(each[column] == wanted[column] for column in wanted)), line)
        return "" if other is line else difference(line.rows, other.rows) or ""

    return Column(f"minus {name}", cell)


def papers(heading: str, figures: Mapping[Any, Any], *columns: str, form: str = "{}") -> Column:
    """What the paper has for the text of a column, or for those of several."""

    def cell(line: Line) -> str:
        found = figures.get(itemgetter(*columns)(line))
        return "" if found is None else form.format(found)

    return Column(heading, cell)
