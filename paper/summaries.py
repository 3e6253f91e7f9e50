"""Rows into cells: means with their deviation, differences with their standard error, tables of Markdown."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paper.tables import Record

# how kernels start, and how a model is trained, as a reader knows it
INITS = {"authors": "torch's", "paper": "He's"}
NAMES = {"repopt": "RepOpt", "repvgg": "RepVGG", "qarepvgg": "QARepVGG", "sgd": "plain SGD"}
_ENOUGH = 3  # seeds: a way with more of them is no better for it


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of two methods' means over their seeds.

    Attributes:
        mean: of the first less the second.
        error: its standard error, unpaired as a seed does not make two trainings alike; None where one has one seed.
        seeds: how many, of the method that has fewer.
    """

    mean: float
    error: float | None
    seeds: int

    @property
    def side(self) -> int:
        """1 or -1 where the first is ahead or behind by more than two standard errors, else 0."""
        clear = self.error is not None and abs(self.mean) > 2 * self.error
        return int(math.copysign(1, self.mean)) if clear else 0

    def __str__(self) -> str:
        return f"{self.mean:+z.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")


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


def mean_cell(rows: Sequence[Record], column: str) -> str:
    """The mean of what the seeds share; nothing of no figures."""
    return f"{mean(rows, column):z.2f}" if values(rows, column) else ""


def diverged(rows: Iterable[Record]) -> int:
    """How many trainings did not come to an end."""
    return sum(row.get("outcome", "finished") not in ("", "finished") for row in rows)


def best(ways: Iterable[Sequence[Record]]) -> Sequence[Record]:
    """The rows with the highest mean among the ways with three seeds or more, or with most where none has three.

    One of which a training diverged is none.
    """
    whole = [rows for rows in ways if values(rows) and not diverged(rows)]
    enough = min(_ENOUGH, max(map(len, whole), default=0))
    return max((rows for rows in whole if len(rows) >= enough), key=mean, default=[])


def spread(rows: Sequence[Record], column: str = "val_accuracy") -> str:
    """Mean ± sample deviation over the seeds, with how many diverged; nothing of no rows."""
    found, lost = values(rows, column), diverged(rows)
    told = f"{statistics.mean(found):z.2f}" if found else ""
    told += f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{told} ({lost} of {len(rows)} diverged)".strip() if lost else told


def difference(first: Iterable[Record], second: Iterable[Record], column: str = "val_accuracy") -> Difference | None:
    """The first's mean less the second's; None where one of them has no figure, or lost one by diverging."""
    first, second = list(first), list(second)
    one, other = values(first, column), values(second, column)
    if not one or not other or diverged(first) or diverged(second):
        return None
    known = len(one) > 1 and len(other) > 1
    error = math.hypot(*(statistics.stdev(found) / math.sqrt(len(found)) for found in (one, other))) if known else None
    gap = statistics.mean(one) - statistics.mean(other)
    return Difference(mean=gap, error=error, seeds=min(len(one), len(other)))


def told_apart(ways: Mapping[str, Sequence[Record]], other: Sequence[Record], name: str) -> str | None:
    """Which ways are ahead of another by more than two standard errors, which behind, and which are not told apart."""
    gaps = {way: difference(rows, other) for way, rows in ways.items()}
    words = {
        1: f"More than two standard errors ahead of {name}",
        -1: f"More than two standard errors behind {name}",
        0: f"Not told apart from {name}",
    }
    found = {
        side: [way for way, gap in gaps.items() if gap and gap.error is not None and gap.side == side] for side in words
    }
    told = [f"{words[side]}: {'; '.join(its)}." for side, its in found.items() if its]
    return " ".join(told) or None


def markdown(columns: Mapping[str, str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A table; each column is a heading and its alignment, `<` or `>`. One without a single entry is left out."""
    texts = [["" if cell is None else str(cell) for cell in line] for line in lines]
    kept = [number for number in range(len(columns)) if any(line[number] for line in texts)]
    headings, sides = list(columns), list(columns.values())
    return [
        f"| {' | '.join(headings[number] for number in kept)} |",
        f"|{'|'.join('---:' if sides[number] == '>' else '---' for number in kept)}|",
        *(f"| {' | '.join(line[number] for number in kept)} |" for line in texts),
    ]


def notes(rows: Sequence[Record], column: str) -> list[str]:
    """What is to be known of rows that were measured unlike the others, which a column names."""
    said: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.get("note"):
            said.setdefault(row["note"], {})[row[column]] = None
    whole = len({row[column] for row in rows})
    return [f"{'All' if len(names) == whole else ', '.join(names)}: {note}." for note, names in said.items()]


def setting(rows: Sequence[Record]) -> str:
    """On what the rows were trained, in a line: all values where they differ."""
    trained = [row for row in rows if row["train_images"]]
    seeds = sorted({int(row["seed"]) for row in trained if row.get("seed")})
    return (
        f"{_all(trained, 'train_images')} training and {_all(trained, 'val_images')} test images of "
        f"{_all(trained, 'size')} pixels, {_all(trained, 'epochs')} epochs, batch {_all(trained, 'batch_size')}, "
        f"{_all(trained, 'precision')}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}; "
        f"{_all(trained, 'hardware')}, torch {_all(trained, 'torch')}, {dates(trained)}."
    )


def dates(rows: Sequence[Record]) -> str:
    """The day of the rows, or the first and the last."""
    found = sorted({row["date"] for row in rows})
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _all(rows: Sequence[Record], column: str) -> str:
    found = dict.fromkeys(row[column] for row in rows)
    return " or ".join(f"{int(text):,}" if text.isdigit() else text for text in found)
