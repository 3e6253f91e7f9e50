"""How alike two searches rank the scales: Spearman's correlation, which is Pearson's of the ranks.

Scales that start at sqrt(2/l) are alike before any search. What searches on different data agree on shows in how far
they moved the scales from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from repopt.report.searches import Search, branches, check_comparable


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Of one branch's scales in two searches; None where one of them does not vary.

    Attributes:
        first: a search.
        second: another.
        branch: of the scales.
        channels: over all channels of all operators.
        operators: over the operators' means.
        moved: over all channels, of how far each scale is from the mean that its operator started with.
    """

    first: str
    second: str
    branch: str
    channels: float | None
    operators: float | None
    moved: float | None


def rank_correlations(searches: Sequence[Search]) -> list[RankCorrelation]:
    """The correlation of each two searches, branch by branch.

    Raises:
        ValueError: they searched different models.
    """
    check_comparable(searches)
    found = []
    for one, other in combinations(searches, 2):
        for branch in branches(one.means):
            channels, operators, moved = (
                spearman(*(figure(search, branch) for search in (one, other))) for figure in (_scales, _means, _moved)
            )
            found.append(
                RankCorrelation(
                    first=one.name,
                    second=other.name,
                    branch=branch,
                    channels=channels,
                    operators=operators,
                    moved=moved,
                )
            )
    return found


def spearman(first: Tensor, second: Tensor) -> float | None:
    """Spearman's rank correlation; None where one of the two is constant.

    Example:
        >>> round(spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0, 100.0])), 6)
        1.0
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"a rank correlation is of two lists of one length, not of {tuple(first.shape)} and {tuple(second.shape)}"
        )
    ranked = torch.stack([ranks(first), ranks(second)])
    if (ranked == ranked[:, :1]).all(1).any():
        return None
    return torch.corrcoef(ranked)[0, 1].item()


def ranks(values: Tensor) -> Tensor:
    """The rank of each value from 1 on; equal values share the mean of theirs."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    shared: Tensor = counts.cumsum(0) - (counts.double() - 1) / 2
    return shared[place]


def _scales(search: Search, branch: str) -> Tensor:
    return torch.cat([scale.flatten() for scale in _by_operator(search, branch).values()])


def _means(search: Search, branch: str) -> Tensor:
    return torch.stack([scale.mean() for scale in _by_operator(search, branch).values()])


def _moved(search: Search, branch: str) -> Tensor:
    found = _by_operator(search, branch)
    return torch.cat([scale.flatten() - search.start[operator][branch] for operator, scale in found.items()])


def _by_operator(search: Search, branch: str) -> dict[str, Tensor]:
    """A branch's scales, in an order that does not depend on the file they come from."""
    return {name: search.scales[name][branch] for name in sorted(search.scales) if branch in search.scales[name]}
