"""`python -m paper`: what is listed, written and said; killed, shared, and given what it cannot use."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elsewhere import Elsewhere, make_table
from paper.commands import main
from paper.jobs import Scope
from paper.tables import NAMES, table_named
from paper.view import read_rows
from repopt.device import commit

QUICK = ["--quick", "--device", "cpu"]


def run(*words):
    """The exit code."""
    with pytest.raises(SystemExit) as done:
        main([*map(str, words)])
    return done.value.code


def finished(folder):
    """When each run below a folder was finished."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


def test_without_a_name_all_tables_are_listed_by_the_real_program(tmp_path):
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run(
        [sys.executable, "-m", "paper"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    first = [line[:20].strip().replace(" --", "_") for line in done.stdout.splitlines()]
    assert [words for words in first if words in NAMES] == [*NAMES]
    assert not list(tmp_path.iterdir())


def test_a_table_of_a_cpu_is_asked_for_by_its_flag(capsys):
    assert run("table4_cpu") != 0
    assert "give table4 --cpu" in capsys.readouterr().err


def test_the_list_counts_every_row_that_stands_and_those_that_are_missing(tmp_path, capsys):
    header = ",".join(table_named("zoo").header)
    (tmp_path / "zoo.csv").write_text("\n".join([header, *["another row" + "," * header.count(",")] * 3]) + "\n")
    assert run("--out", tmp_path) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("zoo ")]
    assert line.endswith(f" 3 rows, {len(table_named('zoo').rows(Scope()))} missing")


_INTERRUPTED = """
import importlib.abc, os, runpy, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "paper.tables":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("paper", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_while_it_starts_is_one_line(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "repopt: interrupted\n")


def test_help_shows_an_example_and_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    said = capsys.readouterr().out
    assert "python -m paper table4 --cifar100 DIR --imagenette DIR" in said
    assert max(map(len, said.splitlines())) <= 80


def test_quick_writes_rows_and_table_below_the_folder_it_is_run_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("zoo", *QUICK, "--only", "*vgg*") == 0
    folder = tmp_path / "runs" / "quick"
    (row,) = read_rows(folder / "zoo.csv")
    assert (row["model"], row["seed"], row["commit"]) == ("repopt_vgg_nano", "0", commit())
    found = f"{float(row['val_accuracy']):.2f}"
    assert f"| repopt_vgg_nano | search | 0 | {found} |" in (folder / "zoo.md").read_text()
    said = capsys.readouterr().out
    assert [re.sub(r"in \d+ s$", "in", line) for line in said.splitlines()] == [
        "Searched scales: 0 rows stand in runs/quick/zoo.csv, 1 to go",
        "1/1  repopt_vgg_nano, search, 0",
        f"    accuracy {found} in",
        "rows: runs/quick/zoo.csv",
        "table: runs/quick/zoo.md",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_seeds_and_places_are_the_users(tmp_path, capsys):
    where = ["--out", tmp_path / "rows", "--runs", tmp_path / "kept", "--page", tmp_path / "page" / "all.md"]
    words = ["table5", *QUICK, *where, "--only", "imagenette, digits*", "--seeds", 3, 4, "--quiet"]
    assert run(*words) == 0
    assert capsys.readouterr().out == ""
    assert [row["seed"] for row in read_rows(tmp_path / "rows" / "table5.csv")] == ["3", "4"]
    assert "# Table 5: scales from other data" in (tmp_path / "page" / "all.md").read_text()
    runs = finished(tmp_path / "kept")
    assert len(runs) == 3  # a search, and a training for each seed
    (tmp_path / "rows" / "table5.csv").unlink()
    assert run(*words) == 0
    assert len(read_rows(tmp_path / "rows" / "table5.csv")) == 2
    assert finished(tmp_path / "kept") == runs


def test_a_table_that_was_killed_goes_on_with_the_rows_that_are_missing_and_two_processes_share_them(tmp_path):
    words, rows = ["tableB", *QUICK, "--out", tmp_path, "--quiet"], tmp_path / "tableB.csv"
    killed = Elsewhere(make_table, words)
    killed.wait_for(lambda: read_rows(rows))
    killed.kill()
    stood, done = rows.read_text(), finished(tmp_path)
    assert [row["scales_start"] for row in read_rows(rows)] == ["all 1"]
    both = [Elsewhere(make_table, words) for _ in range(2)]
    for process in both:
        process.wait()
    assert rows.read_text().startswith(stood)
    starts = sorted(row["scales_start"] for row in read_rows(rows))
    assert starts == ["all 1", "not searched", "sqrt(2/l)"]  # a quick run has no second search
    assert done.items() <= finished(tmp_path).items()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["zoo"], "this table needs data: give --cifar100, the folder of CIFAR-100"),
        (
            ["table4", "--cifar100", "."],
            "this table needs data: give --imagenette, the folder that holds its train and val",
        ),
        (["zoo", "--cifar100", "/nowhere", "--out", "."], "there is nothing at '/nowhere'"),
        (["zoo", *QUICK, "--only", "nope*"], "zoo has no row named 'nope*'; one is 'repopt_vgg_nano, search, 0'"),
        (["table9"], "there is no table 'table9': did you mean table"),
        (["zoo", *QUICK, "--out", "taken"], "'taken' is a file: give --out a folder"),
        (["zoo", *QUICK, "--runs", "taken"], "'taken' is a file: give --runs a folder"),
        (["zoo", *QUICK, "--page", "."], "'.' is a folder: give --page a file"),
        (["zoo", *QUICK, "--authors", "nowhere"], "there is no folder 'nowhere': give --authors that of the .pth"),
        (["zoo", *QUICK, "--out", "other"], "'other/zoo.csv' has different columns from zoo: give another --out"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_exit_code_2(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "zoo.csv").write_text("recipe,model\n")
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"repopt: {sentence}")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.rglob("*.md"))
    assert not finished(tmp_path)


def test_figures_of_ones_own_leave_the_pages_alone(tmp_path, monkeypatch):
    def fail():
        raise AssertionError("the pages of docs/ are about the rows of the checkout")

    monkeypatch.setattr("paper.pages.write_pages", fail)
    words = ["multipliers", "--device", "cpu", "--only", "*nano*", "--quiet", "--runs", tmp_path / "runs"]
    assert run(*words, "--out", tmp_path / "mine") == 0
    assert "What the scales multiply gradients by" in (tmp_path / "mine" / "multipliers.md").read_text()
