"""`repopt reproduce`, run as the real program."""

import signal

import pytest

from paper import TABLES
from paper.tables import read_rows
from repopt.cli import main
from train.program import Program, heard, run

QUICK = ["--quick", "--device", "cpu"]


def finished(folder):
    """When each run below a folder was finished."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


def test_without_a_name_all_tables_are_listed(tmp_path):
    done = heard("reproduce", cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.split() and line.split()[0] in TABLES] == [
        *TABLES
    ]
    assert not list(tmp_path.iterdir())


def test_help_shows_an_example():
    done = heard("reproduce", "--help")
    assert done.returncode == 0
    assert "repopt reproduce table4 --cifar100 DIR --imagenette DIR" in done.stdout


def test_quick_writes_rows_and_page_below_the_folder_it_is_run_in(tmp_path):
    done = heard("reproduce", "zoo", *QUICK, "--only", "*vgg*", cwd=tmp_path, env={"REPOPT_COMMIT": "a1b2c3d"})
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "quick"
    (row,) = read_rows(folder / "zoo.csv")
    assert (row["model"], row["seed"], row["commit"]) == ("repopt_vgg_nano", "0", "a1b2c3d")
    page = (folder / "results.md").read_text()
    assert f"| `repopt_vgg_nano` | search | 0 | {float(row['val_accuracy']):.2f} |" in page
    assert "`zoo`," not in page.partition("## Not run yet")[2]
    assert done.stdout.splitlines() == [
        "Searched scales: 0 rows stand in runs/quick/zoo.csv, 1 to go",
        "1/1  repopt_vgg_nano, search, 0",
        f"    accuracy {float(row['val_accuracy']):.2f}",
        "rows: runs/quick/zoo.csv",
        "page: runs/quick/results.md",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_seeds_and_places_are_the_users(tmp_path):
    where = ["--out", tmp_path / "rows", "--runs", tmp_path / "kept", "--page", tmp_path / "page" / "all.md"]
    words = ["table5", *QUICK, *where, "--only", "imagenette, digits*", "--seeds", 3, 4, "--quiet"]
    done = heard("reproduce", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [row["seed"] for row in read_rows(tmp_path / "rows" / "table5.csv")] == ["3", "4"]
    assert "## Table 5: scales from other data" in (tmp_path / "page" / "all.md").read_text()
    runs = finished(tmp_path / "kept")
    assert len(runs) == 3  # a search, and a training a seed
    (tmp_path / "rows" / "table5.csv").unlink()
    assert heard("reproduce", *words, cwd=tmp_path).returncode == 0
    assert len(read_rows(tmp_path / "rows" / "table5.csv")) == 2
    assert finished(tmp_path / "kept") == runs


def test_a_table_that_was_killed_goes_on_with_the_rows_that_are_missing(tmp_path):
    words, rows = ["reproduce", "tableB", *QUICK, "--out", tmp_path], tmp_path / "tableB.csv"
    killed = Program(*words, log=tmp_path / "log")
    killed.wait_for(lambda: read_rows(rows))
    assert killed.send(signal.SIGKILL)
    killed.wait()
    stood, trained = rows.read_text(), finished(tmp_path)
    assert [row["scales_start"] for row in read_rows(rows)] == ["all 1"]
    code, said = run(*words, log=tmp_path / "log2")
    assert code == 0, said
    assert "1 rows stand" in said
    assert rows.read_text().startswith(stood)
    assert [row["scales_start"] for row in read_rows(rows)] == [
        "all 1",
        "sqrt(2/l)",
        "searched again",
        "not searched",
    ]
    assert trained.items() <= finished(tmp_path).items()


def test_two_programs_share_the_rows_of_a_table(tmp_path):
    words = ["reproduce", "tableB", *QUICK, "--out", tmp_path / "out"]
    both = [Program(*words, log=tmp_path / name) for name in ("one", "other")]
    assert [program.wait() for program in both] == [0, 0], [program.said for program in both]
    rows = read_rows(tmp_path / "out" / "tableB.csv")
    assert sorted(row["scales_start"] for row in rows) == ["all 1", "not searched", "searched again", "sqrt(2/l)"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["zoo"], "this table needs data: give --cifar100, the folder of CIFAR-100"),
        (
            ["table4", "--cifar100", "."],
            "this table needs data: give --imagenette, the folder that holds its train and val",
        ),
        (["zoo", "--cifar100", "/nowhere"], "there is nothing at '/nowhere'"),
        (["zoo", "--quick", "--only", "nope*"], "zoo has no row named 'nope*'; one is 'repopt_vgg_nano, search, 0'"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_exit_code_2(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["reproduce", *words])
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"repopt: {sentence}")
    assert len(said.splitlines()) == 1
    assert not [*tmp_path.rglob("*.csv"), *tmp_path.rglob("*.md")]


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--out", "'taken' is a file: give --out a folder"),
        ("--runs", "'taken' is a file: give --runs a folder"),
        ("--page", "'.' is a folder: give --page a file"),
    ],
)
def test_a_place_of_the_wrong_kind_is_told_before_anything_is_trained(flag, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    with pytest.raises(SystemExit):
        main(["reproduce", "zoo", *QUICK, flag, "." if flag == "--page" else "taken"])
    assert capsys.readouterr() == ("", f"repopt: {sentence}\n")


def test_figures_of_ones_own_leave_the_checkouts_page_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("the checkout's")
    with pytest.raises(SystemExit) as done:
        main(["reproduce", "multipliers", "--device", "cpu", "--out", "mine", "--only", "*nano*", "--quiet"])
    assert done.value.code == 0
    assert (tmp_path / "docs" / "results.md").read_text() == "the checkout's"
    assert "What the scales imply" in (tmp_path / "mine" / "results.md").read_text()


def test_a_folder_of_scales_that_is_not_there_is_told_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["reproduce", "zoo", *QUICK, "--authors", "nowhere"])
    said = "repopt: there is no folder 'nowhere': give --authors that of the .pth files\n"
    assert capsys.readouterr() == ("", said)


def test_a_file_of_something_else_is_told_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo.csv").write_text("recipe,model\n")
    with pytest.raises(SystemExit):
        main(["reproduce", "zoo", *QUICK, "--out", "."])
    assert capsys.readouterr() == ("", "repopt: 'zoo.csv' has other columns than zoo: give another --out\n")


def test_without_its_data_the_program_ends_with_exit_code_2(tmp_path):
    done = heard("reproduce", "table4", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("repopt: this table needs data: give --cifar100")
    assert "Traceback" not in done.stderr


def test_a_table_that_is_not_there_is_answered_with_those_that_are(capsys):
    with pytest.raises(SystemExit) as done:
        main(["reproduce", "table7"])
    assert done.value.code == 2
    assert capsys.readouterr().err.startswith("repopt: there is no table 'table7'; there is table2, table3")
