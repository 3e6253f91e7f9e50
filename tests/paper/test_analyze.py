"""`repopt analyze`, run as the real program."""

import csv
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from repopt.cli import main
from train.program import TINY, finished, run

pytest.importorskip("matplotlib")

QUICK = [*TINY, "--epochs", "1", "--warmup-epochs", "0", "--device", "cpu", "--quiet"]
PLACE = {"hardware", "threads", "python", "torch", "date"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two searches, a training by repopt and one of RepVGG."""
    path = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        finished("search", *QUICK, "--seed", seed, out=path / f"search-{seed}")
    finished("train", *QUICK, "--scales", path / "search-0" / "scales.safetensors", out=path / "repopt")
    finished("train", *QUICK, "--method", "repvgg", out=path / "repvgg")
    return path


def analyze(*words, log):
    code, said = run("analyze", *words, log=log, env={"COLUMNS": "80"})
    assert code == 0, said
    assert max(len(line) for line in said.splitlines() if not line.startswith("written: ")) <= 80
    written = [line.removeprefix("written: ") for line in said.splitlines() if line.startswith("written: ")]
    return " ".join(said.split()), written


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def report(*words, log):
    code, said = run("report", *words, "--out", log.with_suffix(".html"), log=log)
    assert code == 0, said
    return log.with_suffix(".html").read_text()


def test_kernels_of_two_runs_become_a_table_a_figure_and_a_section_of_the_report(root, tmp_path):
    said, written = analyze("kernels", root / "repopt", root / "repvgg", log=tmp_path / "log")
    assert "layer: stage3.7, layer 8 of 16 in stage3" in said
    folder = root / "repopt" / "analysis"
    assert written == [str(folder / name) for name in ("kernels.csv", "kernels.svg", "kernels.html")]
    table = rows(folder / "kernels.csv")
    assert [row["kernel"] for row in table if row["run"] == "repopt"] == ["3x3 kernel", "after fusing BN"]
    fused, added = [row for row in table if row["run"] == "repvgg"][1:]
    assert float(added["surrounding"]) == pytest.approx(float(fused["surrounding"]), rel=1e-5)
    assert all(row[name] for row in table for name in ("seed", *PLACE))
    assert "Spread of the 3x3 kernels" in report(root / "repopt", log=tmp_path / "with")
    assert "Spread of the 3x3 kernels" not in report(root / "repvgg", log=tmp_path / "without")


def test_a_figure_on_disk_stands_alone(root, tmp_path):
    analyze("kernels", root / "repvgg", "--out", tmp_path, log=tmp_path / "log")
    drawn = (tmp_path / "kernels.svg").read_text()
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in drawn
    assert "var(--series-1)" in (tmp_path / "kernels.html").read_text()


def test_searches_stand_side_by_side_with_their_rank_correlation(root, tmp_path):
    said, _ = analyze("scales", root / "search-0", root / "search-1", log=tmp_path / "log")
    assert "Rank correlation" in said
    folder = root / "search-0" / "analysis"
    pairs = rows(folder / "rank_correlations.csv")
    assert [row["branch"] for row in pairs] == ["conv3x3", "conv1x1", "identity"]
    assert {row["seeds"] for row in pairs} == {"0 1"}
    points = rows(folder / "scales.csv")
    deep = [row for row in points if row["curve"] == "by depth" and row["branch"] == "conv3x3"]
    assert [row["run"] for row in deep] == ["search-0"] * 28 + ["search-1"] * 28  # all convolutions of nano
    assert {row["epoch"] for row in points if row["curve"] == "over epochs"} == {"0", "1"}
    page = report(root / "search-0", root / "search-1", log=tmp_path / "report")
    assert page.count("Searched scales side by side") == 1
    analyze("scales", root / "search-0", log=tmp_path / "one")
    assert not (folder / "rank_correlations.csv").exists()  # one search has nothing to be compared with


def test_the_variance_is_measured_without_a_run(tmp_path):
    small = ["--depths", "2", "3", "--widths", "8", "8", "--size", "16", "--batch-size", "4", "--seeds", "2"]
    said, _ = analyze("variance", *small, "--data", "digits", "--out", tmp_path, log=tmp_path / "log")
    assert "4 images of digits at 16 px, 2 seeds." in said
    table = rows(tmp_path / "variance.csv")
    assert {row["seed"] for row in table} == {"0", "1"}
    assert {row["block"] for row in table} == {"2", "3"}
    analyze("variance", *small, "--data", "digits", "--out", tmp_path, log=tmp_path / "log2")
    assert rows(tmp_path / "variance.csv") == table  # replaced, not appended to
    assert "Identity variance at initialization" in (tmp_path / "variance.html").read_text()


def test_without_matplotlib_there_is_a_table_and_a_sentence(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="0"):
        main(["analyze", "kernels", str(root / "repvgg"), "--out", str(tmp_path)])
    assert "no figures: the report draws its figures with matplotlib" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.csv"]


def test_json_is_the_table(root, tmp_path):
    code, said = run("analyze", "kernels", root / "repvgg", "--out", tmp_path, "--json", log=tmp_path / "log")
    assert code == 0
    table = rows(tmp_path / "kernels.csv")
    assert [str(row["overall"]) for row in json.loads(said)] == [row["overall"] for row in table]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kernels"], "give the folder of at least one finished run"),
        (["kernels", "repvgg", "repvgg"], "is given twice: name each folder once"),
        (["kernels", "nowhere"], "is no run: it holds no model.safetensors"),
        (["kernels", "repvgg", "--layer", "stage9"], "the model has no 3x3 layer 'stage9'"),
        (["scales", "repvgg"], "is a run of the method repvgg: give the folder of a search"),
        (["scales", "search-0", "--operator", "nope"], "the searches hold no operator 'nope'"),
        (["kernels", "repvgg", "--out", __file__], "is a file: give --out a folder"),
        (["variance", "--seeds", "0"], "must be at least 1"),
        (["variance", "--depths", "1", "--widths", "8", "--size", "16"], "has no block with an identity"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_exit_code_2(root, tmp_path, words, sentence):
    given = [root / word if word in ("repvgg", "search-0", "nowhere") else word for word in words]
    code, said = run("analyze", *given, log=tmp_path / "log")
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
