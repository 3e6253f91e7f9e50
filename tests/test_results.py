import csv

import pytest
import torch

from repopt.results import append_csv, environment


def test_the_environment_says_where_when_and_with_what():
    found = environment("cpu")
    assert found["torch"] == torch.__version__
    assert "cores" in found["hardware"]
    assert set(found) == {"hardware", "threads", "python", "torch", "date"}


def test_rows_are_appended_under_one_header(tmp_path):
    path = tmp_path / "results" / "step.csv"
    append_csv(path, [{"ms": 1, "seed": 0}])
    append_csv(path, [{"ms": 2, "seed": 0}])
    with path.open() as file:
        assert list(csv.DictReader(file)) == [{"ms": "1", "seed": "0"}, {"ms": "2", "seed": "0"}]


def test_other_columns_do_not_go_into_the_same_file(tmp_path):
    append_csv(tmp_path / "a.csv", [{"ms": 1}])
    with pytest.raises(ValueError, match=r"a\.csv' has other columns"):
        append_csv(tmp_path / "a.csv", [{"images": 1}])


def test_a_file_that_was_left_empty_gets_its_header(tmp_path):
    (tmp_path / "a.csv").touch()
    append_csv(tmp_path / "a.csv", [{"ms": 1}])
    assert (tmp_path / "a.csv").read_text() == "ms\n1\n"
