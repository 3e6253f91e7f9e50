"""Rows over seeds against numbers computed by hand; a table of Markdown: its lines and cells, and the best of each."""

import math

import pytest

from made_up import line
from paper.table4 import TABLE4
from paper.view import (
    SEEDS,
    View,
    accuracy,
    best,
    difference,
    groups,
    matching,
    mean,
    mean_and_error,
    minus,
    number,
    papers,
    render,
    spread,
)


def rows(**accuracies):
    return [
        line(name=name, model="m", seed=seed, val_accuracy=value)
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def lines(view, rows):
    """The cells, headings first."""
    head, bars, *body = render(view, rows).splitlines()
    assert set(bars) <= set("|-:")
    return [[cell.strip() for cell in text.strip("|").split("|")] for text in (head, *body)]


def test_a_table_has_a_heading_an_alignment_and_a_line_for_each_group():
    view = View(by=("name",), columns=["name", SEEDS, accuracy()])
    assert render(view, rows(b=(70, 72), a=(80,))).splitlines() == [
        "| name | seeds | accuracy |",
        "|---|---:|---:|",
        "| b | 2 | 71.00 ± 1.41 |",
        "| a | 1 | 80.00 |",
    ]


def test_without_groups_each_row_is_a_line_and_without_rows_there_is_no_table():
    view = View(columns=["name", number("val_accuracy", "accuracy", "{:.1f}", per=10)])
    assert lines(view, rows(a=(70, 80)))[1:] == [["a", "7.0"], ["a", "8.0"]]
    assert render(view, []) == "(not measured yet)"


def test_an_order_sorts_and_selects_and_a_column_without_an_entry_is_left_out():
    view = View(by=("name",), order={"name": ("a", "b")}, columns=["name", accuracy(), number("lr")])
    assert lines(view, rows(c=(1,), b=(2,), a=(3,))) == [["name", "accuracy"], ["a", "3.00"], ["b", "2.00"]]


def test_best_first_orders_by_accuracy():
    view = View(by=("name",), best_first=True, columns=["name"])
    assert lines(view, rows(a=(1,), b=(3,), c=(2,)))[1:] == [["b"], ["c"], ["a"]]


def test_a_difference_is_to_a_line_that_shares_the_other_keys():
    found = [*rows(a=(70, 72), b=(80, 82)), *({**row, "model": "other"} for row in rows(a=(60,), b=(90,)))]
    view = View(by=("model", "name"), columns=["model", "name", minus("a"), minus("it", {"model": "m", "name": "b"})])
    assert lines(view, found) == [
        ["model", "name", "minus a", "minus it"],
        ["m", "a", "", "-10.00 ± 1.41"],
        ["m", "b", "+10.00 ± 1.41", ""],
        ["other", "a", "", "-21.00"],
        ["other", "b", "+30.00", "+9.00"],
    ]


def test_the_papers_figures_stand_beside_ours():
    view = View(by=("name",), columns=["name", papers("paper", {"a": 1.5}, "name", form="{:.2f}")])
    assert lines(view, rows(a=(1,), b=(2,)))[1:] == [["a", "1.50"], ["b", ""]]


def tried(name, *settings):
    return [
        line(optimizer=name, model="b1", init=init, rate=rate, lr=rate or 0.1, seed=seed, val_accuracy=value)
        for init, rate, values in settings
        for seed, value in enumerate(values)
    ]


def test_a_baseline_has_the_best_of_its_settings_and_says_which_were_tried():
    """The rate at the edge of those tried with the init that is best is named."""
    full = tried("RepOptimizer", ("authors", "", (90, 92)))
    sgd = tried("SGD", ("authors", "", (89, 80)), ("paper", "", (86, 87)), ("paper", 0.2, (80, 81)))
    adam = tried("Adam", *(("paper", rate, (value,)) for rate, value in ((0.0003, 70), (0.003, 71), (0.001, 75))))
    shown = {cells[1]: cells for cells in lines(TABLE4, [*sgd, *adam, *full])}
    assert shown["SGD"][2:6] == ["He's", "0.1", "torch's: 0.1; He's: 0.1, 0.2, the lowest is best", "2"]
    assert shown["SGD"][6:] == ["86.50 ± 0.71", "-4.50 ± 1.12", "", "76.91", "-1.56"]
    assert shown["Adam"][2:6] == ["He's", "0.001", "He's: 0.0003, 0.001, 0.003", "1"]
    assert shown["RepOptimizer"][6:] == ["91.00 ± 1.41", "", "+4.50 ± 1.12", "78.47", ""]


def over_seeds(*accuracies, first=0, **columns):
    return [line(seed=seed, val_accuracy=value, **columns) for seed, value in enumerate(accuracies, start=first)]


def test_the_error_of_a_difference_is_by_the_variance_of_both_together_or_by_each_ones_own():
    """Squares of 12 over four seeds and of 2 over three: variances of 4 and 1, of 14 / 5 together."""
    found = difference(over_seeds(90, 90, 86, 90), over_seeds(80, 81, 82))
    assert found.mean == 8
    assert found.error == pytest.approx((14 / 5 * (1 / 4 + 1 / 3)) ** 0.5)
    assert str(found) == "+8.00 ± 1.28"
    few = difference(over_seeds(88, 92), over_seeds(80, 81, 82, 81, 81))  # variances of 8 and 1 / 2: 10 / 5 together
    assert few.error == pytest.approx((8 / 2 + 0.5 / 5) ** 0.5)


def test_two_seeds_that_happen_to_agree_do_not_make_a_difference_certain():
    many = over_seeds(*(50 + place / 8 for place in range(-4, 5)))
    assert difference(over_seeds(50.4, 50.4), many).side == 0
    assert difference(over_seeds(51, 51), many).side == 1


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
    value, error = mean_and_error(over_seeds(70))
    assert value == 70
    assert math.isnan(error)


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
