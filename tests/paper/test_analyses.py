"""`python -m paper kernels`, `variance` and `scales`: tables, figures, and what they cannot use."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from made_up import small_job
from paper.commands import main
from paper.view import read_rows
from repopt.train.training import train_run

pytest.importorskip("matplotlib")

PLACE = {"hardware", "threads", "python", "torch", "date"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two searches, a training by repopt and one of RepVGG."""
    path = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train_run(replace(small_job(seed=seed), method="search"), path / f"search-{seed}", device="cpu", quiet=True)
    scales = path / "search-0" / "scales.safetensors"
    train_run(replace(small_job(), method="repopt", scales=scales), path / "repopt", device="cpu", quiet=True)
    train_run(replace(small_job(), method="repvgg"), path / "repvgg", device="cpu", quiet=True)
    return path


@pytest.fixture
def analyze(capsys):
    """What an analysis says, and the names of the files that it has written."""

    def run(*words, code=0):
        with pytest.raises(SystemExit) as done:
            main([*map(str, words)])
        said = "".join(capsys.readouterr())
        assert done.value.code == code, said
        assert "Traceback" not in said
        written = [line.rpartition("/")[2] for line in said.splitlines() if line.startswith("written: ")]
        return said, written

    return run


def test_kernels_of_two_runs_become_a_table_and_a_figure(root, analyze):
    said, written = analyze("kernels", root / "repopt", root / "repvgg")
    assert "layer: stage3.7, layer 8 of 16 in stage3" in said
    assert written == ["kernels.csv", "kernels.svg"]
    table = read_rows(root / "repopt" / "analysis" / "kernels.csv")
    assert [row["kernel"] for row in table if row["run"] == "repopt"] == ["3x3 kernel", "after fusing BN"]
    fused, added = [row for row in table if row["run"] == "repvgg"][1:]
    assert float(added["surrounding"]) == pytest.approx(float(fused["surrounding"]), rel=1e-5)
    assert all(row[name] for row in table for name in ("seed", *PLACE))


def test_a_figure_stands_alone(root, tmp_path, analyze):
    analyze("kernels", root / "repvgg", "--out", tmp_path)
    drawn = (tmp_path / "kernels.svg").read_text()
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    used, given = set(re.findall(r"var\((--[\w-]+)\)", drawn)), drawn.partition("prefers-color-scheme: dark")
    assert used
    assert all(f"{variable}: #" in palette for variable in used for palette in (given[0], given[2]))  # light and dark


def test_searches_stand_side_by_side_with_their_rank_correlation(root, analyze):
    said, written = analyze("scales", root / "search-0", root / "search-1")
    assert "rank correlation, moved" in said
    assert written == ["scales.csv", "rank_correlations.csv", "scales_over_epochs.svg", "scales_by_depth.svg"]
    folder = root / "search-0" / "analysis"
    pairs = read_rows(folder / "rank_correlations.csv")
    assert [row["branch"] for row in pairs] == ["conv3x3", "conv1x1", "identity"]
    assert {row["seeds"] for row in pairs} == {"0 1"}
    points = read_rows(folder / "scales.csv")
    deep = [row for row in points if row["curve"] == "by depth" and row["branch"] == "conv3x3"]
    assert [row["run"] for row in deep] == ["search-0"] * 28 + ["search-1"] * 28  # all convolutions of nano
    assert {row["epoch"] for row in points if row["curve"] == "over epochs"} == {"0", "1"}
    analyze("scales", root / "search-0")
    assert not (folder / "rank_correlations.csv").exists()  # one search has nothing to be compared with


def test_the_variance_is_measured_without_a_run(tmp_path, analyze):
    small = ["--depths", "2", "3", "--widths", "8", "8", "--size", "16", "--batch-size", "4", "--seeds", "2"]
    said, written = analyze("variance", *small, "--data", "digits", "--out", tmp_path)
    assert "data digits, size 16, batch_size 4" in said
    assert written == ["variance.csv", "variance.svg"]
    table = read_rows(tmp_path / "variance.csv")
    assert {row["seed"] for row in table} == {"0", "1"}
    assert {row["block"] for row in table} == {"2", "3"}
    analyze("variance", *small, "--data", "digits", "--out", tmp_path)
    assert read_rows(tmp_path / "variance.csv") == table  # replaced, not appended to


def test_without_matplotlib_there_is_a_table_and_a_sentence(root, tmp_path, monkeypatch, analyze):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said, written = analyze("kernels", root / "repvgg", "--out", tmp_path)
    assert "no figures: figures are drawn by matplotlib" in said
    assert written == [path.name for path in tmp_path.glob("[!.]*")] == ["kernels.csv"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kernels"], "give the folder of at least one finished run"),
        (["kernels", "repvgg", "repvgg"], "is given twice: name each folder once"),
        (["kernels", "nowhere"], "is not a run folder: it has no model.safetensors"),
        (["kernels", "repvgg", "--layer", "stage9"], "the model has no 3x3 layer 'stage9'"),
        (["scales", "repvgg"], "is a run of the method repvgg: give the folder of a search"),
        (["scales", "search-0", "--operator", "nope"], "the searches hold no operator 'nope'"),
        (["kernels", "repvgg", "--out", __file__], "is a file: give --out a folder"),
        (["variance", "--seeds", "0"], "must be at least 1"),
        (["variance", "--depths", "1", "--widths", "8", "--size", "16"], "has no block with an identity"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_exit_code_2(root, analyze, words, sentence):
    given = [root / word if word in ("repvgg", "search-0", "nowhere") else word for word in words]
    said, _ = analyze(*given, code=2)
    assert sentence in said
