"""What the paper says, beside what came out here: where the two agree, where not, and where ours cannot tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repopt.reproduce.summaries import Difference, markdown


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A difference in accuracy that the paper reports.

    Attributes:
        text: what the paper says.
        model: that ours is of.
        paper: its difference, on ImageNet.
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
        if self.ours.error is None:
            return "cannot tell: one run"
        side = self.ours.side if self.again is None or self.again.side == self.ours.side else 0
        if self.alike:
            return {0: "not told apart", 1: "differs: ahead", -1: "differs: behind"}[side]
        return {0: "cannot tell", 1: "agrees", -1: "the other way round"}[side * int(math.copysign(1, self.paper))]


def beside_the_paper(claims: Sequence[Claim]) -> list[str]:
    """The claims as lines of Markdown."""
    cells = [
        (claim.text, f"{claim.paper:+.2f}", claim.model, claim.ours, claim.again, claim.finding) for claim in claims
    ]
    columns = {"the paper says": "<", "paper, ImageNet": ">", "our model": "<", "ours": ">", "to another search": ">"}
    return [
        "Differences in accuracy, in points; ours on Imagenette unless said. Ours agrees with a difference where it "
        "has the same sign and is more than two standard errors away from none. Where the paper says that two are "
        "alike, not to tell them apart is no more than that: see the error. The paper's model is B1, in "
        "Appendix D GhostNet 0.5x. Rows of one model share trainings, and are not independent. To another search: the "
        "same difference to the scales of a second search, like the first but for its seed; what is said has to hold "
        "for both.",
        "",
        *markdown({**columns, "": "<"}, cells),
    ]
