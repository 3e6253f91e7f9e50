"""The rows of a CSV file, and what they say over seeds: means, deviations, differences with their standard error."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Record = Mapping[str, str]
Wanted = str | Sequence[str]  # a text, or any of several

# how kernels start, and how a model is trained, as a reader knows it
INITS = {"authors": "torch's", "paper": "He's"}
METHODS = {"repopt": "RepOpt", "repvgg": "RepVGG", "qarepvgg": "QARepVGG", "sgd": "plain SGD"}
_ENOUGH = 3  # seeds: a setting with more of them is no better for it


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The difference of two means over seeds.

    Attributes:
        mean: the first less the second.
        error: its standard error, unpaired since a seed does not make two trainings alike; None with a single seed.
    """

    mean: float
    error: float | None

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
    with path.open(newline="") as file:
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
    return [float(row[column]) for row in rows if row[column]]


def mean(rows: Iterable[Record], column: str = "val_accuracy") -> float:
    found = values(rows, column)
    return statistics.mean(found) if found else math.nan


def diverged(rows: Iterable[Record]) -> int:
    """How many trainings did not reach their end."""
    return sum(row.get("outcome", "finished") not in ("", "finished") for row in rows)


def best(settings: Iterable[Sequence[Record]]) -> Sequence[Record]:
    """The setting with the highest mean, among those with three seeds or more, or with most where none has three.

    A setting with a training that diverged does not count.
    """
    whole = [rows for rows in settings if values(rows) and not diverged(rows)]
    enough = min(_ENOUGH, max(map(len, whole), default=0))
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
    known = len(one) > 1 and len(other) > 1
    error = math.hypot(*(statistics.stdev(found) / math.sqrt(len(found)) for found in (one, other))) if known else None
    gap = statistics.mean(one) - statistics.mean(other)
    return Gap(mean=gap, error=error)
