"""How rows become a table of Markdown: which lines it has, and a cell for each column. The one renderer."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paper.rows import INITS, METHODS, Record, Wanted, best, difference, groups, matching, mean, spread, values

# names for the texts of some columns
_NAMES = {"init": INITS, "kernel": INITS, "method": METHODS, "trained_by": METHODS}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a table.

    Attributes:
        rows: what it shows, a row for each seed.
        tried: the rows of all settings, of which `rows` is the best.
        table: all lines, this one included.
        by: the columns whose texts tell lines apart.
    """

    rows: Sequence[Record]
    tried: Sequence[Record]
    table: Sequence["Line"]
    by: tuple[str, ...]

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
    """How the rows of a table are shown.

    Attributes:
        columns: of the rendered table, those of the rows by name; one without a single entry is left out.
        by: the columns whose texts tell lines apart, the last being a line's name; without, each row is a line. Lines
            are ordered by them, texts as they first appear.
        best: the columns of settings that were tried, of which a line shows the best.
        where: the rows that are shown, by the texts of their columns.
        order: {column: its texts in another order}; rows with other texts are left out.
        best_first: lines that `order` does not tell apart are ordered by accuracy.
        csv: the file of the rows, where it is not named as the table is.
    """

    columns: Sequence[Column | str]
    by: tuple[str, ...] = ()
    best: tuple[str, ...] = ()
    where: Mapping[str, Wanted] = field(default_factory=dict)
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    best_first: bool = False
    csv: str = ""

    def at_best(self, rows: Sequence[Record]) -> Sequence[Record]:
        """The rows of the best setting, where several were tried."""
        return best(groups(rows, *self.best).values()) if self.best else rows


def render(view: View, rows: Sequence[Record]) -> str:
    """The table as Markdown."""
    wanted = matching(rows, **view.where, **view.order)
    appearing = {column: list(dict.fromkeys(row[column] for row in wanted)) for column in view.by}
    order = {**({} if view.best_first else appearing), **view.order}

    def place(rows: Sequence[Record]) -> tuple[float, ...]:
        listed = tuple(texts.index(rows[0][column]) for column, texts in order.items())
        return (*listed, -mean(rows)) if view.best_first else listed

    lines: list[Line] = []
    for tried in sorted(groups(wanted, *view.by).values() if view.by else [[row] for row in wanted], key=place):
        shown = view.at_best(tried)
        if shown:
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


def accuracy(heading: str = "accuracy", column: str = "val_accuracy", **where: Wanted) -> Column:
    """Mean ± deviation over the seeds."""
    return Column(heading, lambda line: spread(matching(line.rows, **where), column))


def number(column: str, heading: str = "", form: str = "{:,.0f}", per: float = 1, **where: Wanted) -> Column:
    """The mean of a column in some unit; empty without figures."""

    def cell(line: Line) -> str:
        found = values(matching(line.rows, **where), column)
        return form.format(statistics.mean(found) / per) if found else ""

    return Column(heading or column, cell)


def minus(name: str, reference: Mapping[str, str] | None = None) -> Column:
    """The difference to another line with its standard error; empty in that line itself.

    Args:
        name: of the other line.
        reference: what the columns of the other line hold; without, the name is that of a line like this one.
    """

    def cell(line: Line) -> object:
        wanted = reference or {**{column: line[column] for column in line.by}, line.by[-1]: name}
        other = next((each for each in line.table if all(each[column] == wanted[column] for column in wanted)), line)
        return "" if other is line else difference(line.rows, other.rows) or ""

    return Column(f"minus {name}", cell)


def papers(heading: str, figures: Mapping[Any, Any], *columns: str, form: str = "{}") -> Column:
    """What the paper has for the text of a column, or for those of several."""

    def cell(line: Line) -> str:
        texts = tuple(line[column] for column in columns)
        found = figures.get(texts if len(texts) > 1 else texts[0])
        return "" if found is None else form.format(found)

    return Column(heading, cell)
