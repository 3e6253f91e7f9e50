"""Means, differences and their errors, against numbers computed by hand."""

import pytest

from made_up import line
from paper.rows import best, difference, groups, matching, mean, spread


def over_seeds(*accuracies, first=0, **columns):
    return [line(seed=seed, val_accuracy=value, **columns) for seed, value in enumerate(accuracies, start=first)]


def test_a_difference_is_of_two_means_whose_errors_add_up():
    """Deviations 2 and 1 over four and three seeds: the error is sqrt(4 / 4 + 1 / 3)."""
    found = difference(over_seeds(90, 90, 86, 90), over_seeds(80, 81, 82))
    assert found.mean == 8
    assert found.error == pytest.approx((4 / 3) ** 0.5)
    assert str(found) == "+8.00 ± 1.15"


def test_the_order_of_the_rows_does_not_matter_to_a_difference():
    assert difference(over_seeds(91, 72, 86)[::-1], over_seeds(90, 70, 80)) == difference(
        over_seeds(91, 72, 86), over_seeds(90, 70, 80)[::-1]
    )


def test_a_side_is_taken_beyond_two_standard_errors():
    """Deviations of 1 over two seeds each: the error is 1."""
    base = over_seeds(50, 50 + 2**0.5)
    sides = [difference(over_seeds(50 + gap, 50 + 2**0.5 + gap), base).side for gap in (2.1, 1.9, -1.9, -2.1)]
    assert sides == [1, 0, 0, -1]
    assert difference(over_seeds(99), base).side == 0  # nothing is known from one seed
    assert difference([], base) is None


def test_one_seed_has_no_error():
    found = difference(over_seeds(69.5), over_seeds(70))
    assert (found.error, str(found)) == (None, "-0.50")


def test_a_training_that_diverged_leaves_no_difference_and_is_counted():
    lost = [*over_seeds(70, 72), line(seed=2, outcome="the loss was not finite")]
    assert difference(lost, over_seeds(60, 61)) is None
    assert spread(lost) == "71.00 ± 1.41 (1 of 3 diverged)"
    assert best([lost, over_seeds(50, 51, 52)]) == over_seeds(50, 51, 52)


def test_a_cell_without_a_figure_is_no_figure():
    rows = [*over_seeds(70, 80), line(seed=2, val_accuracy="")]
    assert spread(rows) == spread(rows[:2])
    assert difference(rows, over_seeds(60, 60, 60)) == difference(rows[:2], over_seeds(60, 60, 60))


def test_a_spread_is_the_mean_and_the_sample_deviation():
    assert spread(over_seeds(70, 72, 74)) == "72.00 ± 2.00"
    assert spread(over_seeds(70.456)) == "70.46"
    assert spread([]) == ""
    assert spread([line(drop=1), line(drop=3)], "drop") == "2.00 ± 1.41"


def test_a_mean_of_nothing_is_no_number():
    assert mean(over_seeds(70, 73)) == 71.5
    assert mean([]) != mean([])


def test_rows_are_found_and_grouped_by_their_texts():
    rows = [line(a=a, b=b) for a, b in ("xp", "yp", "xq", "xp")]
    assert matching(rows, a="x", b="p") == [rows[0], rows[3]]
    assert matching(rows, a=("y", "z"), b=["p", "q"]) == [rows[1]]
    assert matching(rows) == rows
    assert groups(rows, "a", "b") == {("x", "p"): [rows[0], rows[3]], ("y", "p"): [rows[1]], ("x", "q"): [rows[2]]}
    assert list(groups(rows, "a")) == [("x",), ("y",)]


def test_the_best_is_sought_among_the_settings_with_three_seeds_or_most():
    whole, lucky = over_seeds(80, 81, 82), over_seeds(99)
    assert best([lucky, whole]) == whole
    assert best([lucky, over_seeds(98)]) == lucky
    assert best([lucky, over_seeds(70, 71)]) == over_seeds(70, 71)


def test_more_than_three_seeds_make_a_setting_no_better():
    usual, better = over_seeds(80, 81, 82, 80, 81, 82), over_seeds(83, 84, 85)
    assert best([usual, better]) == better
    assert best([better, over_seeds(90, 91), usual]) == better
