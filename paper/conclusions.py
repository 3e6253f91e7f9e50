"""What the results pages conclude, beside the differences that these conclusions rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paper.claims import Which
from paper.view import Gap, Wanted
from repopt.files import read_toml

_SMALL = 0.25  # points: the standard error that a conclusion may rest on
_ENOUGH = 8  # trainings of both together: of fewer, two standard errors say too little
_FEWEST = 6  # where the difference is _CLEAR standard errors: of four, two may agree by chance
_CLEAR = 5


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """One of two is ahead, or they are alike; conclusions.toml explains the fields."""

    question: str
    text: str
    table: str
    first: Which
    second: Which
    where: Mapping[str, Wanted] = field(default_factory=dict)
    alike: bool = False
    column: str = "val_accuracy"

    def is_settled(self, gap: Gap, trainings: int) -> bool:
        """Whether a difference between so many trainings bears it out, and is known well enough."""
        if gap.error is None:
            return False
        clear = not self.alike and abs(gap.mean) >= _CLEAR * gap.error
        enough = trainings >= (_FEWEST if clear else _ENOUGH)
        return enough and gap.error <= _SMALL and gap.side == (0 if self.alike else 1)


def read_conclusions() -> list[Conclusion]:
    groups = read_toml(Path(__file__).with_suffix(".toml"))["groups"]
    return [Conclusion(**{**group, **each}) for group in groups for each in group.pop("conclusions")]
