"""What the results pages conclude: the rows bear it out, and are enough of them."""

from dataclasses import replace

import pytest

from paper.conclusions import Conclusion, read_conclusions
from paper.pages import RESULTS, table
from paper.view import Gap

AHEAD = Conclusion(question="where", text="a is ahead of b", table="where", first="a", second="b")
ALIKE = replace(AHEAD, alike=True)


@pytest.mark.parametrize(
    ("mean", "error", "trainings", "ahead", "alike"),
    [
        (0.6, 0.25, 8, True, False),
        (0.6, 0.25, 7, False, False),
        (0.4, 0.25, 8, False, True),  # within two standard errors
        (0.4, 0.25, 7, False, False),
        (-0.6, 0.25, 8, False, False),
        (1.25, 0.25, 6, True, False),  # five standard errors
        (1.25, 0.25, 5, False, False),
        (-1.25, 0.25, 6, False, False),
        (9.0, 0.26, 9, False, False),
        (0.1, 0.26, 9, False, False),
        (9.0, None, 2, False, False),
    ],
)
def test_a_conclusion_needs_a_small_error_and_enough_seeds_or_five_errors(mean, error, trainings, ahead, alike):
    gap = Gap(mean=mean, error=error)
    assert (AHEAD.is_settled(gap, trainings), ALIKE.is_settled(gap, trainings)) == (ahead, alike)


def test_the_rows_bear_out_each_conclusion():
    shown = table(RESULTS, "conclusions").splitlines()[2:]
    assert len(shown) == len(read_conclusions())
    assert [line for line in shown if line.endswith(" open |")] == []


def test_a_conclusion_that_the_rows_do_not_bear_out_is_open(monkeypatch):
    turned = [replace(each, first=each.second, second=each.first) for each in read_conclusions()[:1]]
    monkeypatch.setattr("paper.pages.read_conclusions", lambda: turned)
    assert table(RESULTS, "conclusions").splitlines()[2].endswith(" open |")
