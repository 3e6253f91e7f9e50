"""A table of Markdown: lines, cells, the best of what was tried, and differences between lines."""

from made_up import line
from paper.table4 import TABLE as TABLE4
from paper.view import SEEDS, View, accuracy, minus, number, papers, render


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
    shown = {cells[1]: cells for cells in lines(TABLE4.view, [*sgd, *adam, *full])}
    assert shown["SGD"][2:6] == ["He's", "0.1", "torch's: 0.1; He's: 0.1, 0.2, the lowest is best", "2"]
    assert shown["SGD"][6:] == ["86.50 ± 0.71", "-4.50 ± 1.12", "", "76.91", "-1.56"]
    assert shown["Adam"][2:6] == ["He's", "0.001", "He's: 0.0003, 0.001, 0.003", "1"]
    assert shown["RepOptimizer"][6:] == ["91.00 ± 1.41", "", "+4.50 ± 1.12", "78.47", ""]
