"""What the paper says, beside what came out here: where the two agree, where not, and where ours cannot tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paper.summaries import Difference, difference, markdown
from paper.tables import Record


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference in accuracy that the paper reports.

    Attributes:
        text: what the paper says.
        model: that ours is of.
        paper: its difference.
        ours: the same difference, as it came out here.
        again: the same once more, where ours is to scales of one search, to those of another search of the same kind.
        alike: whether the paper says that there is no difference that matters.
    """

    text: str
    model: str
    paper: float
    ours: Difference
    again: Difference | None = None
    alike: bool = False

    @property
    def finding(self) -> str:
        gaps = [gap for gap in (self.ours, self.again) if gap]
        if any(gap.error is None for gap in gaps):
            return "cannot tell: one run"
        if len({gap.side for gap in gaps}) > 1:
            return "depends on the search"
        if self.alike:
            return {0: "not told apart", 1: "differs: ahead", -1: "differs: behind"}[self.ours.side]
        return {0: "cannot tell", 1: "agrees", -1: "the other way round"}[
            self.ours.side * int(math.copysign(1, self.paper))
        ]


def claims_to_searches(
    text: str,
    model: str,
    paper: float,
    rows: Sequence[Record],
    first: Sequence[Record],
    again: Sequence[Record] = (),
    *,
    alike: bool = False,
) -> list[Claim]:
    """The claim that rows differ from those with a search's scales, and with another's where there is one.

    Args:
        text: what the paper says.
        model: that ours is of.
        paper: its difference.
        rows: whose accuracy is compared.
        first: rows with the scales of one search.
        again: rows with those of another, like it; none where that was not tried.
        alike: whether the paper says that there is no difference that matters.

    Returns:
        One claim; none where a difference cannot be taken, as where a training diverged.
    """
    ours, second = difference(rows, first), difference(rows, again)
    if ours is None or (again and second is None):
        return []
    return [Claim(text=text, model=model, paper=paper, ours=ours, again=second, alike=alike)]


def beside_the_paper(claims: Sequence[Claim]) -> list[str]:
    """The claims as lines of Markdown."""
    cells = [
        (claim.text, f"{claim.paper:+.2f}", claim.model, claim.ours, claim.again, claim.finding) for claim in claims
    ]
    columns = {"the paper says": "<", "paper": ">", "our model": "<", "ours": ">", "to another search": ">"}
    return [
        "Differences in accuracy, in points; the paper's on ImageNet and ours on Imagenette unless said. Ours agrees "
        "with a difference where it has the same sign and is more than two standard errors away from none. Where the "
        "paper says that two are alike, not to tell them apart is no more than that: see the error. The paper's model "
        "is B1, in Appendix D GhostNet 0.5x. Rows of one model share trainings, and are not independent. To another "
        "search: the same difference to the scales of a second search, like the first but for its seed. Where that "
        "cell is empty, both sides have the same scales, or a second search was not tried.",
        "",
        *markdown({**columns, "": "<"}, cells),
    ]
