"""What the paper says, beside what came out here: where the two agree, where not, and where ours cannot tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paper.view import Gap, Wanted
from repopt.files import read_toml

Which = str | Mapping[str, Wanted]  # rows of a table: the name of a line, or what their columns hold


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference in accuracy that the paper reports, and the rows that have ours; claims.toml explains the fields."""

    text: str
    paper: Sequence[float]
    table: str
    ours: Which
    to: Which
    again: Which | None = None
    where: Mapping[str, Wanted] = field(default_factory=dict)
    alike: bool = False
    column: str = "val_accuracy"

    @property
    def about(self) -> str:
        """Our model, and the seeds where not all count."""
        seeds = self.where.get("seed")
        listed = f", seeds {', '.join(seeds)}" if seeds and not isinstance(seeds, str) else ""
        return f"{self.where['model']}{listed}"

    def finding(self, gaps: Sequence[Gap]) -> str:
        """Whether ours agrees beyond two standard errors, for one search and for another where there is one.

        A difference that is not clearly one may still be clearly smaller than the paper's.
        """
        if any(gap.error is None for gap in gaps):
            return "cannot tell: one run"
        side, *others = {gap.side for gap in gaps}
        if others:
            return "depends on the search"
        if self.alike:
            return {0: "no clear difference", 1: "differs: ahead", -1: "differs: behind"}[side]
        paper = self.paper[0] - self.paper[1]
        smaller = all(replace(gap, mean=gap.mean - paper).side for gap in gaps)
        unclear = "smaller, if any" if smaller else "cannot tell"
        return {0: unclear, 1: "agrees", -1: "opposite"}[side if paper > 0 else -side]


def read_claims() -> list[Claim]:
    claims = read_toml(Path(__file__).with_suffix(".toml"))["claims"]
    return [Claim(**claim) for claim in claims]
