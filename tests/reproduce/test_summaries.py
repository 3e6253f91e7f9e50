"""Means, differences and their errors, against numbers computed by hand."""

import pytest

from repopt.reproduce.summaries import best, difference, groups, markdown, matching, mean, setting, spread
from reproduce.made_up import line


def over_seeds(*accuracies, first=0, **columns):
    return [line(seed=seed, val_accuracy=value, **columns) for seed, value in enumerate(accuracies, start=first)]


def test_a_difference_is_paired_by_seed():
    """1, 2 and 6: their mean is 3, their deviation sqrt(7), and that of the mean sqrt(7 / 3)."""
    found = difference(over_seeds(91, 72, 86), over_seeds(90, 70, 80))
    assert (found.mean, found.seeds) == (3, 3)
    assert found.error == pytest.approx((7 / 3) ** 0.5)
    assert str(found) == "+3.00 ± 1.53"


def test_the_order_of_the_rows_does_not_matter_to_a_difference():
    assert difference(over_seeds(91, 72, 86)[::-1], over_seeds(90, 70, 80)) == difference(
        over_seeds(91, 72, 86), over_seeds(90, 70, 80)[::-1]
    )


def test_only_seeds_of_both_are_compared():
    found = difference(over_seeds(50, 60, 70), over_seeds(61, 69, 99, first=1))
    assert (found.mean, found.seeds, found.error) == (0, 2, 1)
    assert difference(over_seeds(50, 60), over_seeds(50, first=2)) is None
    assert difference([], over_seeds(50)) is None


def test_one_seed_has_no_error():
    found = difference(over_seeds(69.5), over_seeds(70))
    assert (found.error, str(found)) == (None, "-0.50")


def test_a_cell_without_a_figure_is_no_figure():
    rows = [*over_seeds(70, 80), line(seed=2, val_accuracy="")]
    assert spread(rows) == spread(rows[:2])
    assert difference(rows, over_seeds(60, 60, 60)).seeds == 2


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
    assert matching(rows) == rows
    assert groups(rows, "a", "b") == {("x", "p"): [rows[0], rows[3]], ("y", "p"): [rows[1]], ("x", "q"): [rows[2]]}
    assert list(groups(rows, "a")) == [("x",), ("y",)]


def test_a_table_of_markdown_has_a_heading_an_alignment_and_a_line_a_row():
    assert markdown({"name": "<", "seeds": ">"}, [("a", 3), ("b", None)]) == [
        "| name | seeds |",
        "|---|---:|",
        "| a | 3 |",
        "| b |  |",
    ]


def test_the_setting_names_data_recipe_seeds_and_machine():
    rows = [line(seed=1, hardware="B"), line(seed=0, epochs=60, hardware="A"), line(seed=1, hardware="A")]
    rows += [line(train_images="", outcome="the loss was not finite")]  # of which nothing is known
    assert setting(rows) == (
        "9,469 training and 3,925 test images of 96 pixels, 40 or 60 epochs, batch 256, bf16, seeds 0, 1; B or A, "
        "torch 2.13.0, 2026-11-15."
    )


def test_a_seed_that_diverged_is_told_and_never_the_best():
    fine, lucky = over_seeds(80, 81), [*over_seeds(99), line(seed=1, outcome="the loss was not finite at step 3")]
    assert spread(lucky) == "99.00 (1 of 2 diverged)"
    assert spread(lucky[1:]) == "(1 of 1 diverged)"
    assert spread(fine) == "80.50 ± 0.71"
    assert best([lucky, fine]) == fine
    assert best([lucky]) == []
