"""Rows into cells: means with their deviation, differences with their standard error, tables of Markdown."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from repopt.reproduce.tables import Record

# how kernels start, as a reader knows it
INITS = {"authors": "torch's", "paper": "He's"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of two methods over the seeds that both were trained with.

    Attributes:
        mean: of the first less the second.
        error: its standard error, from the differences seed by seed; None for one seed.
        seeds: how many.
    """

    mean: float
    error: float | None
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")


def matching(rows: Iterable[Record], **wanted: str) -> list[Record]:
    """The rows whose columns hold these texts."""
    return [row for row in rows if all(row[column] == text for column, text in wanted.items())]


def groups(rows: Iterable[Record], *columns: str) -> dict[tuple[str, ...], list[Record]]:
    """The rows by the texts in some columns, in the order in which these first appear."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def values(rows: Iterable[Record], column: str = "val_accuracy") -> list[float]:
    return [float(row[column]) for row in rows if row[column]]


def mean(rows: Iterable[Record], column: str = "val_accuracy") -> float:
    found = values(rows, column)
    return statistics.mean(found) if found else math.nan


def diverged(rows: Iterable[Record]) -> int:
    """How many trainings did not come to an end."""
    return sum(row.get("outcome", "finished") not in ("", "finished") for row in rows)


def best(ways: Iterable[Sequence[Record]]) -> Sequence[Record]:
    """The rows with the highest mean among several ways; one of which a training diverged is none."""
    return max((rows for rows in ways if values(rows) and not diverged(rows)), key=mean, default=[])


def spread(rows: Sequence[Record], column: str = "val_accuracy") -> str:
    """Mean ± sample deviation over the seeds, with how many diverged; nothing of no rows."""
    found, lost = values(rows, column), diverged(rows)
    told = f"{statistics.mean(found):.2f}" if found else ""
    told += f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{told} ({lost} of {len(rows)} diverged)".strip() if lost else told


def difference(first: Iterable[Record], second: Iterable[Record], column: str = "val_accuracy") -> Difference | None:
    """The first less the second, paired by seed; None where they share no seed."""
    one, other = ({row["seed"]: float(row[column]) for row in rows if row[column]} for rows in (first, second))
    pairs = [one[seed] - other[seed] for seed in one if seed in other]
    if not pairs:
        return None
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return Difference(mean=statistics.mean(pairs), error=error, seeds=len(pairs))


def markdown(columns: Mapping[str, str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A table; each column is a heading and its alignment, `<` or `>`."""
    rules = ["---:" if side == ">" else "---" for side in columns.values()]
    return [
        f"| {' | '.join(columns)} |",
        f"|{'|'.join(rules)}|",
        *(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |" for line in lines),
    ]


def setting(rows: Sequence[Record]) -> str:
    """On what the rows were trained, in a line: all values where they differ."""
    trained = [row for row in rows if row["train_images"]]
    seeds = sorted({int(row["seed"]) for row in trained if row.get("seed")})
    return (
        f"{_all(trained, 'train_images')} training and {_all(trained, 'val_images')} test images of "
        f"{_all(trained, 'size')} pixels, {_all(trained, 'epochs')} epochs, batch {_all(trained, 'batch_size')}, "
        f"{_all(trained, 'precision')}, seeds {', '.join(map(str, seeds))}; {_all(trained, 'hardware')}, torch "
        f"{_all(trained, 'torch')}, {_all(trained, 'date')}."
    )


def _all(rows: Sequence[Record], column: str) -> str:
    found = dict.fromkeys(row[column] for row in rows)
    return " or ".join(f"{int(text):,}" if text.isdigit() else text for text in found)
