"""Appendix E: a search's means at shares of its epochs, and how alike two searches rank their operators."""

import xml.etree.ElementTree as ElementTree

import pytest

from made_up import line
from paper.scale_figures import FIGURE_E, drawings, rank_correlations_by_depth, read_back
from paper.view import render

OPERATORS = ("stage1.1.conv", "stage1.2.conv", "stage1.3.conv")  # they start at 1.414, 1 and 0.816


def points(source, means):
    """A search of 20 epochs whose last operator grows by a hundredth an epoch."""
    about = {"source": source, "model": "repopt_vgg_nano", "branch": "conv3x3"}
    over = [
        line(curve="over epochs", operator=OPERATORS[-1], epoch=epoch, mean=epoch / 100, **about) for epoch in range(21)
    ]
    deep = zip(OPERATORS, means, strict=True)
    return over + [line(curve="by depth", operator=name, epoch=20, mean=mean, **about) for name, mean in deep]


def test_a_curve_is_shown_at_shares_of_its_epochs():
    shown = render(FIGURE_E, points("cifar100", (1, 2, 3))).splitlines()
    assert shown[0] == "| searched on | branch | 0% | 10% | 25% | 50% | 75% | 100% |"
    assert shown[2:] == ["| cifar100 | conv3x3 | 0.000 | 0.020 | 0.050 | 0.100 | 0.150 | 0.200 |"]


@pytest.mark.parametrize(
    ("one", "other", "means", "change"),
    [
        ((1, 2, 3), (10, 20, 30), 1, 1),
        ((1, 2, 3), (3, 2, 1), -1, -1),
        ((1, 2, 3), (2, 1, 3), 0.5, 0.5),
        ((1.5, 1.0, 0.7), (1.4, 1.1, 1.0), 1, -1),  # alike only in where they started
    ],
)
def test_two_searches_are_compared_by_the_ranks_of_their_operators(one, other, means, change):
    found = rank_correlations_by_depth([*points("cifar100", one), *points("imagenette", other)])
    assert found["conv3x3"] == pytest.approx((means, change))


def test_a_search_is_read_back_from_its_points():
    search = read_back("cifar100", points("cifar100", (1, 2, 3)))
    assert list(search.history) == list(range(21))  # a curve is drawn in this order
    assert {epoch: means[OPERATORS[-1]]["conv3x3"] for epoch, means in search.history.items() if epoch < 20} == {
        epoch: epoch / 100 for epoch in range(20)
    }
    assert list(search.means) == list(OPERATORS)


def test_both_figures_are_drawn():
    drawn = drawings([*points("cifar100", (1, 2, 3)), *points("imagenette", (3, 2, 1))])
    assert list(drawn) == ["epochs", "depth"]
    assert all(ElementTree.fromstring(svg).tag.endswith("svg") for svg in drawn.values())
