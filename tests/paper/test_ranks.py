"""Spearman's correlation of the scales of two searches."""

import pytest
import torch

from paper.ranks import rank_correlations, ranks, spearman
from paper.searches import Search
from repopt.plans.scales import Scales

BRANCHES = ("conv3x3", "conv1x1", "identity")


def search(name, seed, *, channels=6, model="net"):
    draw = torch.Generator().manual_seed(seed)
    found = {
        operator: {branch: torch.rand(channels, generator=draw) + start for branch in BRANCHES}
        for operator, start in (("a", 0.0), ("b", 5.0), ("c", 10.0))
    }
    start = {operator: dict.fromkeys(BRANCHES, begin) for operator, begin in (("a", 0.0), ("b", 5.0), ("c", 10.0))}
    end = {operator: {branch: scale.mean().item() for branch, scale in own.items()} for operator, own in found.items()}
    return Search(name=name, model=model, data="d", seed=seed, history={0: start, 1: end}, scales=Scales(found))


def test_equal_values_share_the_mean_of_their_ranks():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4.0, 1.0, 4.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1.0, 10.0, 100.0, 1000.0], 1.0),
        ([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], -1.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 5.0], 0.8),  # 1 - 6 * sum d^2 / (n (n^2 - 1))
        ([1.0, 2.0, 2.0, 3.0], [1.0, 3.0, 2.0, 4.0], 0.948683298),  # with ties: 4.5 / sqrt(4.5 * 5)
    ],
)
def test_spearman_is_what_the_textbook_says(first, second, expected):
    assert spearman(torch.tensor(first), torch.tensor(second)) == pytest.approx(expected, abs=1e-7)


def test_a_constant_has_no_ranks_to_compare():
    assert spearman(torch.ones(4), torch.arange(4.0)) is None


def test_a_search_agrees_with_itself():
    one = search("one", 0)
    for each in rank_correlations([one, one]):
        assert each["channels"] == each["operators"] == each["moved"] == pytest.approx(1.0)
        assert each["branch"] in BRANCHES


def test_what_searches_share_by_their_start_alone_shows_in_no_correlation_of_the_change():
    """Both start by depth and move at random: the scales are alike, the changes are not."""
    for each in rank_correlations([search("one", 0, channels=200), search("other", 1, channels=200)]):
        assert each["channels"] > 0.85
        assert each["operators"] == pytest.approx(1.0)
        assert abs(each["moved"]) < 0.15


def test_every_pair_is_compared_branch_by_branch():
    found = rank_correlations([search(name, seed) for seed, name in enumerate("xyz")])
    assert [(each["first"], each["second"]) for each in found[::3]] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert [each["branch"] for each in found[:3]] == list(BRANCHES)


def test_searches_of_different_models_are_refused():
    with pytest.raises(ValueError, match="'a' searched net and 'b' other, whose scales differ in shape"):
        rank_correlations([search("a", 0), search("b", 0, channels=7, model="other")])


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="two lists of one length"):
        spearman(torch.ones(3), torch.ones(4))
