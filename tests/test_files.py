import csv
import shutil
import subprocess

import pytest
import torch

from repopt import results
from repopt.device import commit, environment
from repopt.files import append_csv


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


def test_a_copy_without_git_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("REPOPT_COMMIT", "a1b2c3d")
    assert commit.__wrapped__() == "a1b2c3d"


def test_the_commit_is_that_of_the_packages_own_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("REPOPT_COMMIT", raising=False)
    checkout, package = tmp_path / "checkout", tmp_path / "checkout" / "repopt"
    package.mkdir(parents=True)
    shutil.copy(results.__file__, package)
    monkeypatch.setattr(results, "__file__", str(package / "results.py"))

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", checkout, *who, *words], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    assert commit.__wrapped__() == ""  # inside somebody's checkout, and not part of it
    git("add", "-A")
    git("commit", "-qm", "first")
    head = git("rev-parse", "--short", "HEAD").strip()
    assert commit.__wrapped__() == head
    (checkout / "results.csv").write_text("1")
    assert commit.__wrapped__() == head
    (package / "results.py").write_text("changed")
    assert commit.__wrapped__() == f"{head}-dirty"
