"""Every table runs, on nano and a few digits, in one workshop: a run is trained once whichever tables ask for it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import repopt
from made_up import QUICK
from paper import TABLES, Scope, Workshop, reproduce, results_page
from paper.tables import read_rows, work_left
from repopt.plans.scales import Scales

FULL = Scope(cifar100=Path("cifar"), imagenette=Path("imagenette"), authors=Path("authors"))


def nothing(sentence):
    """For those who do not want to hear."""


def trained(workshop):
    """When each of the workshop's runs was finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in workshop.folder.glob("*/summary.json")}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(folder=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module", params=TABLES)
def measured(request, workshop, results):
    """A table with all its rows measured."""
    if request.param == "table8":
        pytest.importorskip("torchao", reason="needs the extra int8")
    elsewhere = reproduce(request.param, QUICK, workshop, results, tell=nothing)
    assert elsewhere == []
    return SimpleNamespace(name=request.param, table=TABLES[request.param], path=results / f"{request.param}.csv")


def test_every_line_says_where_when_and_with_which_seed(measured):
    lines = read_rows(measured.path)
    assert len(lines) >= len(list(measured.table.rows(QUICK))) > 0
    for line in lines:
        assert set(line) == {*measured.table.keys, *measured.table.figures, "commit"}
        assert (line["seed"], line["torch"]) == ("0", torch.__version__)
        assert line["hardware"]
        assert line["date"]


def test_what_stands_is_not_measured_again(measured, workshop, results):
    before, runs, said = measured.path.read_bytes(), trained(workshop), []
    assert work_left(measured.table, QUICK, measured.path).rows == ()
    assert reproduce(measured.name, QUICK, workshop, results, tell=said.append) == []
    assert (measured.path.read_bytes(), trained(workshop)) == (before, runs)
    assert [sentence.rpartition(", ")[2] for sentence in said] == ["0 to go"]


def test_the_page_has_the_table(measured, results):
    page = results_page(TABLES, results, QUICK)
    assert f"\n## {measured.table.title}\n\n`repopt reproduce {measured.name}`.\n" in page
    assert f"`{measured.name}`" not in page.partition("## Not run yet")[2].partition("##")[0]


def test_the_page_can_be_made_after_each_row(measured):
    lines, so_far = read_rows(measured.path), []
    for row in measured.table.rows(QUICK):
        key = {column: "" if value is None else str(value) for column, value in row.key.items()}
        so_far += [line for line in lines if key.items() <= line.items()]
        assert "|" in "\n".join(measured.table.part(so_far))
    assert sorted(so_far, key=lines.index) == lines


def test_the_page_can_be_made_where_a_training_diverged(measured):
    """Whichever row it was; one that was timed or analyzed has no such outcome."""
    table, lines = measured.table, read_rows(measured.path)
    trained = [number for number, line in enumerate(lines) if line.get("val_accuracy")]
    if not trained:
        pytest.skip(f"no row of {measured.name} is the outcome of a training")
    for number in trained:
        line = lines[number]
        lost = {column: value if column in table.keys else "" for column, value in line.items()}
        lost["outcome"] = "the loss was not finite at step 3"
        rest = [*lines[:number], *lines[number + 1 :]]
        for found in ([lost, *rest], [*rest, lost]):
            said = "\n".join([*table.part(found), table.verdict(found) or ""])
            assert "|" in said
            assert not re.search(r"lr :|batch \)|\bnan\b", said)


def test_a_search_is_done_once_for_all_tables(tmp_path):
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    reproduce("zoo", QUICK, workshop, tmp_path, only="*vgg*", tell=nothing)
    before = trained(workshop)
    assert len(before) == 1
    reproduce("figureE", QUICK, workshop, tmp_path, only="cifar100*", tell=nothing)
    assert (tmp_path / "figureE.csv").exists()
    assert trained(workshop) == before


def test_the_zoos_scales_are_those_that_the_searches_found_and_fit_their_models(workshop, results):
    reproduce("zoo", QUICK, workshop, results, tell=nothing)
    for line in read_rows(results / "zoo.csv"):
        scales = Scales.load(workshop.folder / "zoo" / f"{line['model']}.safetensors")
        assert set(repopt.plan(repopt.create_model(line["model"]), scales=scales).operators) == set(scales)
        assert scales.metadata["run"]


@pytest.mark.parametrize("scope", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("name", TABLES)
def test_each_row_has_a_name_and_a_key_of_its_own(name, scope):
    table = TABLES[name]
    rows = list(table.rows(scope))
    assert table.name == name
    assert len({row.name for row in rows}) == len({tuple(row.key.items()) for row in rows}) == len(rows)
    assert all(set(row.key) <= set(table.keys) for row in rows)
    assert {row.key["seed"] for row in rows} <= set(scope.seeds)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "multipliers"])  # which needs none
def test_without_its_data_a_table_says_which_flag_is_missing(name, tmp_path):
    with pytest.raises(ValueError, match=r"^this table needs data: give --(cifar100|imagenette), the folder"):
        reproduce(name, Scope(), Workshop(folder=tmp_path, device="cpu"), tmp_path, tell=nothing)
    assert not list(tmp_path.glob("*.csv"))


def test_a_full_table_says_how_long_it_takes(tmp_path):
    said = []
    nowhere = Scope(cifar100=Path("/nowhere"), imagenette=Path("/nowhere"))
    with pytest.raises(FileNotFoundError, match="there is no folder '/nowhere'"):
        reproduce("tableD", nowhere, Workshop(folder=tmp_path, device="cpu"), tmp_path, tell=said.append)
    assert said[0] == (
        f"Appendix D: GhostNet: 0 rows stand in {tmp_path / 'tableD.csv'}, 15 to go, about 9 minutes on one H200"
    )


def test_a_table_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    with pytest.raises(ValueError, match="there is no table 'table7'; there is table2, table3"):
        reproduce("table7", QUICK, Workshop(folder=tmp_path), tmp_path)


def test_rows_that_need_the_authors_scales_are_left_out_without_them(tmp_path):
    said = []
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    reproduce("multipliers", Scope(), workshop, tmp_path, only="repopt_vgg_b1*", tell=said.append)
    assert said[1] == "left out without --authors: 1 rows"
    assert {line["scales"] for line in read_rows(tmp_path / "multipliers.csv")} == {"ours"}


def test_the_authors_scales_are_not_needed_for_a_quick_table(tmp_path):
    names = [row.key["constants"] for row in TABLES["constants"].rows(Scope(quick=True, authors=tmp_path))]
    assert "authors" not in names
    assert "authors" in [row.key["constants"] for row in TABLES["constants"].rows(FULL)]
