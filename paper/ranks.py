"""How alike two searches rank the scales: Spearman's correlation, which is Pearson's of the ranks.

Scales that start at sqrt(2/l) are alike before any search. What searches on different data agree on shows in how far
they moved the scales from there.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from paper.searches import Search, check_comparable
from repopt.report.searched_scales import searched_branches


def rank_correlations(searches: Sequence[Search]) -> list[dict[str, Any]]:
    """The correlations of each two searches, branch by branch; None where one of the two does not vary.

    Those of `channels` are over all channels of all operators, `operators` over the operators' means, and `moved` over
    all channels, of how far each scale is from the mean that its operator started with.

    Raises:
        ValueError: they searched different models.
    """
    check_comparable(searches)
    return [
        {
            **{"first": one.name, "second": other.name, "branch": branch},
            **{
                what: spearman(first, second)
                for (what, first), second in zip(
                    _figures(one, branch).items(), _figures(other, branch).values(), strict=True
                )
            },
            "seeds": f"{one.seed} {other.seed}",
        }
        for one, other in combinations(searches, 2)
        for branch in searched_branches(one.means)
    ]


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


def _figures(search: Search, branch: str) -> dict[str, Tensor]:
    """What is ranked, in an order that does not depend on the file that the scales come from."""
    scales = {name: search.scales[name][branch] for name in sorted(search.scales) if branch in search.scales[name]}
    return {
        "channels": torch.cat([scale.flatten() for scale in scales.values()]),
        "operators": torch.stack([scale.mean() for scale in scales.values()]),
        "moved": torch.cat([scale.flatten() - search.start[name][branch] for name, scale in scales.items()]),
    }
