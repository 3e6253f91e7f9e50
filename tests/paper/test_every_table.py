"""Every table can be measured: each training of the full ones can be begun, and quick ones run, in one workshop."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import repopt
from made_up import QUICK
from paper.jobs import Scope
from paper.pages import RESULTS, table
from paper.tables import NAMES, reproduce, rows_left, rows_missing, table_named
from paper.view import read_rows
from paper.workshop import Workshop, _name
from repopt.files import append_csv, are_some_of
from repopt.plans.scales import Scales

FULL = Scope(
    cifar100=Path("cifar"), imagenette=Path("imagenette"), mini64=Path("mini"), authors=Path("authors"), seeds=(0,)
)
# of the others rows are timed, quantized or analyzed, which needs real runs
TRAINED = ("zoo", "conventions", "constants", "a0", "table4", "table5", "table6", "tableB", "tableD")
# `where` has their ways, in the cells of its map
TRAINED += ("table4_cpu", "one_run", "best", "best_decay", "decay", "decay_cpu", "adamw", "adamw_cpu")
SLOW = ("qat_mini", "int8_mini", "int8_rounding_cpu", "adamw")  # others do the same, or, as with QAT, take a minute
# the rows that are measured for real, of tables that differ in what they do with a run
MEASURED = {"zoo": "*vgg*", "figureE": "*", "multipliers": "*", "table2": "*", "table3": "*"}
MEASURED |= {
    "int8_mini": "4e-05, Dirac*",
    "int8_rounding_cpu": "*RepOpt, searched*",
    "qat_mini": "*",
    "adamw": "*, AdamW, *",
    "table4": "SGD, RepVGG*",
    "table8": "repopt*",
    "tableB": "[as]*",
    "tableC": "*",
}
# the rows that are still to be trained on a GPU
TO_BE_TRAINED = {"where": 17}


def trained(workshop):
    """When each of the workshop's runs was finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in workshop.folder.glob("*/summary.json")}


class Drafts(Workshop):
    """Instead of a training, a look at whether its model takes its scales, and the files of a finished run."""

    def run(self, job, *, weights=False):
        out = self.folder / _name(job)
        if out.exists():
            return out
        with torch.device("meta"):
            scales = None if job.scales == "learn" else job.scales
            plan = repopt.plan(repopt.create_model(job.model, num_classes=10, **job.options), scales=scales)
        assert (job.method == "repopt") == (job.scales is not None)
        assert plan.operators
        out.mkdir(parents=True)
        recipe = dataclasses.asdict(job.recipe)
        about = {"parameters": 1, "train_images": 9469, "val_images": 3925, "image_size": job.recipe.size or 32}
        about |= dict.fromkeys(
            ("data_digest", "repopt", "commit", "hardware", "threads", "python", "torch", "date"), ""
        )
        for name, found in {"recipe": recipe, "run": about, "summary": {"val_accuracy": 50.0}}.items():
            (out / f"{name}.json").write_text(json.dumps(found))
        if job.method == "search":
            found = Scales.depth_init(plan)
            identities = {
                name: {"identity": each["conv3x3"]}
                for name, each in found.items()
                if "identity" in plan.blocks[name].branches
            }
            Scales({name: {**each, **identities.get(name, {})} for name, each in found.items()}).save(
                out / "scales.safetensors"
            )
        elif scales is not None:
            scales.save(out / "scales.safetensors")
        return out


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    return Drafts(folder=tmp_path_factory.mktemp("drafts"), device="cpu")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(folder=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.mark.parametrize("name", TRAINED)
def test_every_row_can_be_begun(name, drafts):
    rows = [row for row in table_named(name).rows(FULL) if not row.authors]
    for row in rows:
        for line in row.measure(drafts):
            assert line["val_accuracy"] == 50.0, row.name
    assert rows


def test_a_training_with_searched_scales_has_the_accuracy_of_the_search_and_the_identities_that_its_model_lacks(drafts):
    rows = {row.key["strides"]: row for row in table_named("table6").rows(FULL)}
    dropped = {name: row.measure(drafts)[0].get("dropped_identities") for name, row in rows.items()}
    assert dropped == {"2 2 2 2 2": 0, "2 2 1 2 1": 0, "2 1 2 1 1": 1, "searched again": 0, "not searched": None}
    assert rows["2 1 2 1 1"].measure(drafts)[0]["search_accuracy"] == 50.0


def test_equal_batches_are_equal_and_trained_at_the_recipes_size(drafts):
    wanted = {"what": "accuracy", "batches": "equal"}
    rows = [row for row in table_named("table2").rows(FULL) if wanted.items() <= row.key.items()]
    found = [line for row in rows for line in row.measure(drafts)]
    assert {(line["batch_size"], line["size"], line["lr"]) for line in found} == {(256, 96, 0.1)}
    assert {row.key["model"] for row in rows} == {f"repopt_vgg_{size}" for size in ("b1", "b2", "l1", "l2")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MEASURED])
def test_a_quick_table_is_measured_once_and_shown(name, workshop, tmp_path, capsys):
    if name in ("table8", "int8_mini", "qat_mini"):
        pytest.importorskip("torchao", reason="needs the extra int8")
    made, path, only = table_named(name), tmp_path / f"{name}.csv", MEASURED[name]
    assert reproduce(made, QUICK, workshop, path, only) == []
    lines = read_rows(path)
    assert lines
    for line in lines:
        assert set(line) == {*made.keys, *made.figures, "commit"}
        assert (line["seed"], line["torch"]) == ("0", torch.__version__)
        assert line["hardware"]
        assert line["date"]
    before, runs = path.read_bytes(), trained(workshop)
    assert rows_left(made, QUICK, path, only)[0] == []
    capsys.readouterr()
    assert reproduce(made, QUICK, workshop, path, only) == []
    assert (path.read_bytes(), trained(workshop)) == (before, runs)
    assert [sentence.rpartition(", ")[2] for sentence in capsys.readouterr().out.splitlines()] == ["0 to go"]
    assert table(tmp_path, name).startswith("|")


def test_a_table_is_shown_where_a_training_diverged(tmp_path):
    """Whichever line it was."""
    for name in TRAINED:
        made, lines = table_named(name), read_rows(RESULTS / f"{name}.csv")
        if not lines:
            continue  # nothing of it is measured yet
        for number in range(0, len(lines), 7):
            lost = {column: value if column in made.keys else "" for column, value in lines[number].items()}
            lines[number] = {**lost, "outcome": "the loss was not finite at step 3"}
        append_csv(tmp_path / f"{name}.csv", lines)
        assert not re.search(r"\bnan\b", table(tmp_path, name))


def test_what_is_searched_for_the_zoo_is_searched_once_for_all_tables(workshop, tmp_path):
    reproduce(table_named("zoo"), QUICK, workshop, tmp_path / "zoo.csv", "*vgg*")
    before = trained(workshop)
    reproduce(table_named("figureE"), QUICK, workshop, tmp_path / "figureE.csv", "cifar100*")
    assert trained(workshop) == before


@pytest.mark.parametrize("scope", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_a_name_and_a_key_of_its_own(name, scope):
    made = table_named(name)
    rows = list(made.rows(scope))
    assert len({row.name for row in rows}) == len({tuple(row.key.items()) for row in rows}) == len(rows)
    assert all(set(row.key) <= set(made.keys) for row in rows)
    assert {row.key["seed"] for row in rows} <= set(scope.seeds)


@pytest.mark.parametrize("name", [name for name in NAMES if (RESULTS / f"{name}.csv").exists()])
def test_the_repository_has_three_seeds_of_each_row_of_the_full_table(name):
    """Or the one that the row has, but for those that are still to be trained on a GPU."""
    path, made = RESULTS / f"{name}.csv", table_named(name)
    assert are_some_of(list(read_rows(path)[0]), made.header)  # the first have no training accuracy
    assert len(rows_missing(made, Scope(), path)) == TO_BE_TRAINED.get(name, 0)


def test_a_row_is_not_missing_where_its_setting_has_as_many_other_seeds(tmp_path):
    path, made = tmp_path / "zoo.csv", table_named("zoo")
    few, many = Scope(seeds=(0, 1)), Scope(seeds=(0, 1, 2))
    first = made.rows(Scope(seeds=(0,)))[0].texts
    append_csv(path, [{column: "1" for column in made.header} | first | {"seed": seed} for seed in ("5", "7")])
    names = [[row.texts for row in rows_missing(made, scope, path)] for scope in (few, many)]
    assert [first in texts for texts in names] == [False, True]


def test_seeds_that_a_table_has_no_row_of_leave_nothing_to_do(tmp_path):
    assert rows_left(table_named("histograms"), Scope(seeds=(1,)), tmp_path / "histograms.csv") == ([], 0)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "multipliers"])  # which needs none
def test_without_its_data_a_table_says_which_flag_is_missing(name, tmp_path):
    with pytest.raises(ValueError, match=r"^this table needs data: give --(cifar100|imagenette|mini64), the folder"):
        reproduce(table_named(name), Scope(), Workshop(folder=tmp_path, device="cpu"), tmp_path / "rows.csv")
    assert not list(tmp_path.glob("*.csv"))


def test_rows_that_need_the_authors_scales_are_left_out_without_them(tmp_path, capsys):
    workshop, path = Workshop(folder=tmp_path / "runs", device="cpu"), tmp_path / "multipliers.csv"
    reproduce(table_named("multipliers"), Scope(), workshop, path, "repopt_vgg_b1*")
    assert "left out without --authors: 1 rows\n" in capsys.readouterr().out
    assert {line["scales"] for line in read_rows(path)} == {"ours"}


def test_the_authors_scales_are_not_needed_for_a_quick_table(tmp_path):
    names = [row.key["constants"] for row in table_named("constants").rows(Scope(quick=True, authors=tmp_path))]
    assert "authors" not in names
    assert "authors" in [row.key["constants"] for row in table_named("constants").rows(FULL)]


def test_an_adaptive_optimizer_has_one_seed_and_torchs_init_at_its_two_highest_rates_alone():
    tried, seeds = {}, {}
    for row in table_named("table4").rows(Scope(quick=True, seeds=(0, 1, 2))):
        tried.setdefault((row.key["optimizer"], row.key["init"]), set()).add(row.key["rate"])
        seeds.setdefault(row.key["optimizer"], set()).add(row.key["seed"])
    grids = {"RMSprop", "Adam", "AdamW", "Adafactor"}
    for name in grids:
        assert len(tried[name, "paper"]) == 4
        assert tried[name, "authors"] == set(sorted(tried[name, "paper"])[-2:])
    assert tried["SGD", "authors"] == tried["SGD", "paper"]
    assert seeds == {name: {0} if name in grids else {0, 1, 2} for name in seeds}


def test_a_second_search_is_trained_with_wherever_searches_are_compared_on_imagenette():
    columns = {"table4": "optimizer", "table5": "source", "table6": "strides", "tableB": "scales_start"}
    for name, column in columns.items():
        rows = [row.key for row in table_named(name).rows(Scope()) if row.key[column].endswith("searched again")]
        assert {row["model"] for row in rows} >= {"repopt_vgg_a0"}
        assert {row.get("target", "imagenette") for row in rows} == {"imagenette"}
