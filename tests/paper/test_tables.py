"""Rows are measured once, each written as soon as it is there, and left to the process that is at them."""

import csv

import pytest
import torch

from elsewhere import Elsewhere, stay_at_a_square
from made_up import QUICK, small_job, squares
from paper.jobs import Scope, Training
from paper.tables import Table, TableRow, reproduce, rows_left, table_named
from paper.view import read_rows, values
from paper.workshop import Workshop, figures_of
from repopt.files import append_csv
from repopt.train.stopping import DivergedError


@pytest.fixture
def workshop(tmp_path):
    return Workshop(folder=tmp_path / "runs")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "squares.csv"


def names(rows):
    return [row.name for row in rows]


def measure(workshop, path, only="*", hear=lambda number: None):
    """Measures what is missing; the names of the rows that others are at."""
    return names(reproduce(squares(hear), QUICK, workshop, path, only))


def left(path, only="*"):
    """The names of the rows that are missing."""
    return names(rows_left(squares(), QUICK, path, only)[0])


def test_each_line_has_the_rows_key_its_figures_and_the_commit(workshop, path):
    assert measure(workshop, path) == []
    lines = read_rows(path)
    assert [tuple(line) for line in lines] == [("number", "word", "seed", "square", "commit")] * 3
    assert [(line["number"], line["word"], line["square"]) for line in lines] == [
        ("1", "one", "1"),
        ("2", "two", "4"),
        ("3", "three", "9"),
    ]


def test_a_row_is_named_by_what_its_key_holds():
    row = TableRow(key={"a": "x", "b": None, "c": "", "seed": 0}, measure=lambda workshop: [])
    assert row.name == "x, 0"


def test_only_keeps_the_rows_whose_names_match(path):
    assert left(path, "*t*") == ["2, two, 0", "3, three, 0"]
    assert left(path, "1, one, 0") == ["1, one, 0"]
    assert len(left(path)) == 3


def test_a_pattern_that_matches_nothing_is_answered_with_a_name(path):
    with pytest.raises(ValueError, match=r"^squares has no row named 'four\*'; one is '1, one, 0'$"):
        left(path, "four*")


def test_what_is_left_is_counted(workshop, path):
    measure(workshop, path, "2*")
    rows, standing = rows_left(squares(), QUICK, path)
    assert (names(rows), standing) == (["1, one, 0", "3, three, 0"], 1)


def test_rows_that_stand_are_not_measured_again(workshop, path):
    heard = []
    measure(workshop, path, "3*", heard.append)
    measure(workshop, path, hear=heard.append)
    measure(workshop, path, hear=heard.append)
    assert heard == [3, 1, 2]
    assert [line["number"] for line in read_rows(path)] == ["3", "1", "2"]


def test_a_row_written_by_hand_stands(workshop, path):
    path.parent.mkdir()
    path.write_text("number,word,seed,square,commit\n2,two,0,400,by hand\n")
    heard = []
    measure(workshop, path, hear=heard.append)
    assert heard == [1, 3]
    assert [(line["square"], line["commit"] == "by hand") for line in read_rows(path)] == [
        ("400", True),
        ("1", False),
        ("9", False),
    ]


@pytest.mark.parametrize("other", ["2,two,1", "2,zwei,0", "4,two,0"])
def test_a_row_with_another_key_does_not_stand(path, other):
    path.parent.mkdir()
    path.write_text(f"number,word,seed,square,commit\n{other},4,\n")
    assert len(left(path)) == 3


def test_a_row_that_another_process_has_finished_meanwhile_is_not_measured_again(workshop, path):
    heard = []

    def finish_two_elsewhere(number):
        if number == 1:
            measure(workshop, path, "2*", heard.append)
        heard.append(number)

    assert measure(workshop, path, hear=finish_two_elsewhere) == []
    assert [line["number"] for line in read_rows(path)] == ["2", "1", "3"]
    assert heard == [2, 1, 3]


def test_a_row_that_another_process_is_at_is_left_to_it_until_it_dies(workshop, path):
    other = Elsewhere(stay_at_a_square, workshop.folder, path, 2)
    other.wait_for_begin()
    assert measure(workshop, path) == ["2, two, 0"]
    assert [line["number"] for line in read_rows(path)] == ["1", "3"]
    other.kill()
    assert measure(workshop, path) == []
    assert [line["number"] for line in read_rows(path)] == ["1", "3", "2"]


def test_a_row_that_fails_leaves_those_before_it(workshop, path):
    def fail_at_two(number):
        if number == 2:
            raise RuntimeError("no second number")

    with pytest.raises(RuntimeError, match="no second number"):
        measure(workshop, path, hear=fail_at_two)
    assert [line["number"] for line in read_rows(path)] == ["1"]
    assert measure(workshop, path) == []
    assert [line["number"] for line in read_rows(path)] == ["1", "2", "3"]


def test_what_is_measured_is_printed(workshop, path, capsys):
    measure(workshop, path, "2*")
    capsys.readouterr()
    measure(workshop, path)
    assert capsys.readouterr().out.splitlines()[1:] == ["1/2  1, one, 0", "2/2  3, three, 0"]


def test_there_are_no_rows_without_a_file(path):
    assert read_rows(path) == []
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("number", "word"), ("1", "one, and a comma")])
    assert read_rows(path) == [{"number": "1", "word": "one, and a comma"}]


def test_a_training_that_diverges_is_an_outcome_and_is_not_tried_again(tmp_path):
    job, path = small_job(lr=1e30, epochs=2), tmp_path / "made_up.csv"
    training = Training(data="", measure=lambda training, scope, seed, workshop: [figures_of(workshop.run(job))])
    table = Table(title="Made up", keys=("seed",), trainings=[training], columns=[])
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    assert reproduce(table, QUICK, workshop, path) == []
    (line,) = read_rows(path)
    assert line["outcome"].startswith("the ")
    assert "not finite" in line["outcome"]
    assert (line["val_accuracy"], line["seed"], line["torch"]) == ("", "0", torch.__version__)
    assert rows_left(table, QUICK, path) == ([], 1)


def test_a_row_goes_into_a_file_of_before_training_accuracies(tmp_path):
    """Its own rows stay, and are shown as before."""
    path, table = tmp_path / "zoo.csv", table_named("zoo")
    old = {column: "" for column in table.header if column != "train_accuracy"}
    append_csv(path, [{**old, "model": "repopt_vgg_b1", "recipe": "search", "seed": 0, "val_accuracy": 54.5}])
    assert values(read_rows(path), "train_accuracy") == []
    assert reproduce(table, QUICK, Workshop(folder=tmp_path / "runs", device="cpu"), path) == []
    first, *measured = read_rows(path)
    assert list(first) == table.header
    assert (first["model"], first["val_accuracy"], first["train_accuracy"]) == ("repopt_vgg_b1", "54.5", "")
    assert all(0 <= float(row["train_accuracy"]) <= 100 for row in measured)
    assert len(measured) == len(table.rows(QUICK))


def test_where_there_is_no_column_for_it_a_diverged_row_is_left_out_and_the_next_is_measured(workshop, path, capsys):
    def diverge(number):
        if number == 2:
            raise DivergedError("the loss was not finite at step 3")

    assert measure(workshop, path, hear=diverge) == []
    assert [line["number"] for line in read_rows(path)] == ["1", "3"]
    assert "    left out: the loss was not finite at step 3\n" in capsys.readouterr().out


def test_trainings_are_rows_for_each_seed_and_one_where_a_quick_scope_makes_them_alike():
    trainings = [
        Training(model="b1", key={"way": "a"}),
        Training(model="a0", key={"way": "a"}),
        Training(model="b1", key={"way": "b"}, scales="authors"),
        Training(model="b1", key={"way": "c"}, one_seed=True),
    ]
    table = Table(title="T", keys=("way", "model", "seed"), trainings=trainings, columns=[])
    assert names(table.rows(Scope(seeds=(0, 1)))) == [
        *("a, repopt_vgg_b1, 0", "a, repopt_vgg_a0, 0", "b, repopt_vgg_b1, 0", "c, repopt_vgg_b1, 0"),
        *("a, repopt_vgg_b1, 1", "a, repopt_vgg_a0, 1", "b, repopt_vgg_b1, 1"),
    ]
    assert [row.authors for row in table.rows(Scope(seeds=(0,)))] == [False, False, True, False]
    assert names(table.rows(QUICK)) == ["a, repopt_vgg_nano, 0", "c, repopt_vgg_nano, 0"]


def test_a_table_whose_settings_a_seed_chooses_needs_to_know_what_diverged():
    with pytest.raises(ValueError, match="'T' chooses settings by a seed, so it needs the column 'outcome'"):
        Table(title="T", keys=("rate", "seed"), trainings=[], figures=(), best=("rate",), chosen_on="0", columns=[])
