"""Seed 0 chooses a learning rate, the other seeds are trained with it alone, and a line shows these."""

import csv
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from paper.evidence import DECAY, LEARNED, WHERE, stage_means
from paper.jobs import Scope, Training
from paper.mapped import ELSEWHERE, TUNED, decayed, elsewhere, in_one_run
from paper.pages import RESULTS
from paper.tables import Table, reproduce, rows_left
from paper.view import SEEDS, accuracy, read_rows, render
from paper.workshop import Workshop
from paper.worth_figures import over_decay, over_the_map
from repopt.plans.scales import Scales

SCOPE = Scope(seeds=(0, 1, 2), imagenette=Path("none"))  # whose data nothing here reads
# {learning rate: accuracy of seeds 0, 1 and 2}: the one that is best on seed 0 is not the best on the others
ACCURACIES = {"low": (50, 30, 40), "high": (40, 60, 70)}


def chosen_table(measured, rates=tuple(ACCURACIES)):
    def measure(training, scope, seed, workshop):
        measured.append((training.key["rate"], seed))
        return [{"val_accuracy": ACCURACIES[training.key["rate"]][seed]}]

    return Table(
        title="chosen",
        keys=("way", "rate", "seed"),
        trainings=[Training(key={"way": "one", "rate": rate}, measure=measure) for rate in rates],
        figures=("val_accuracy", "outcome"),
        by=("way",),
        best=("rate",),
        chosen_on="0",
        columns=["way", "rate", SEEDS, accuracy()],
    )


@pytest.fixture
def workshop(tmp_path):
    return Workshop(folder=tmp_path / "runs")


def test_the_other_seeds_have_the_rate_that_seed_0_chooses(workshop, tmp_path, capsys):
    measured, path = [], tmp_path / "chosen.csv"
    table = chosen_table(measured)
    assert reproduce(table, SCOPE, workshop, path) == []
    assert measured == [("low", 0), ("high", 0), ("low", 1), ("low", 2)]
    assert rows_left(table, SCOPE, path) == ([], 4)
    assert "at most 6 to go" in capsys.readouterr().out
    reproduce(table, SCOPE, workshop, path)
    assert capsys.readouterr().out.endswith(", 0 to go\n")


def test_a_line_shows_the_seeds_that_did_not_choose(workshop, tmp_path):
    path = tmp_path / "chosen.csv"
    table = chosen_table([])
    reproduce(table, SCOPE, workshop, path)
    assert render(table, read_rows(path)).splitlines()[-1] == "| one | low | 2 | 35.00 ± 7.07 |"


def test_seeds_that_are_asked_for_alone_have_that_rate_too(workshop, tmp_path):
    measured, path = [], tmp_path / "chosen.csv"
    reproduce(chosen_table(measured), replace(SCOPE, seeds=(0,)), workshop, path)
    reproduce(chosen_table(measured), replace(SCOPE, seeds=(1, 2)), workshop, path)
    assert measured == [("low", 0), ("high", 0), ("low", 1), ("low", 2)]


def test_a_rate_that_is_tried_later_and_is_slightly_better_is_measured_on_the_others(workshop, tmp_path, monkeypatch):
    measured, path = [], tmp_path / "chosen.csv"
    reproduce(chosen_table(measured), SCOPE, workshop, path)
    monkeypatch.setitem(ACCURACIES, "new", (50.4, 55, 56))
    reproduce(chosen_table(measured, rates=("low", "high", "new")), SCOPE, workshop, path)
    assert measured[4:] == [("new", 0), ("new", 1), ("new", 2)]
    assert render(chosen_table([]), read_rows(path)).splitlines()[-1] == "| one | new | 2 | 55.50 ± 0.71 |"


def test_a_rate_that_a_table_no_longer_has_is_not_chosen(workshop, tmp_path, monkeypatch):
    measured, path = [], tmp_path / "chosen.csv"
    monkeypatch.setitem(ACCURACIES, "new", (50.4, 55, 56))
    reproduce(chosen_table(measured, rates=("low", "high", "new")), replace(SCOPE, seeds=(0,)), workshop, path)
    reproduce(chosen_table(measured), SCOPE, workshop, path)
    assert measured[3:] == [("low", 1), ("low", 2)]


def test_a_rate_at_which_the_first_seed_diverged_is_not_chosen():
    trained = [("high", 0, "", "diverged at step 3"), ("high", 1, 60, ""), ("low", 0, 50, ""), ("low", 1, 30, "")]
    rows = [
        {"way": "one", "rate": rate, "seed": str(seed), "val_accuracy": str(at), "outcome": outcome}
        for rate, seed, at, outcome in trained
    ]
    assert render(chosen_table([]), rows).splitlines()[-1].startswith("| one | low | 1 |")


def test_where_there_is_one_rate_no_seed_chooses_and_all_are_shown(workshop, tmp_path):
    measured, path = [], tmp_path / "chosen.csv"
    table = chosen_table(measured, rates=("low",))
    reproduce(table, SCOPE, workshop, path, "*, [12]")
    assert measured == [("low", 1), ("low", 2)]
    reproduce(table, SCOPE, workshop, path)
    accuracies = [ACCURACIES["low"][seed] for seed in (0, 1, 2)]
    shown = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
    assert render(table, read_rows(path)).splitlines()[-1] == f"| one | low | 3 | {shown} |"


@pytest.mark.parametrize(("accuracy", "shown"), [(50.4, "| one | low | 2 |"), (50.6, "| one | high | 1 |")])
def test_a_choice_that_no_other_seed_has_gives_way_to_one_that_is_about_as_good(accuracy, shown):
    trained = [("low", 0, 50), ("low", 1, 30), ("low", 2, 40), ("high", 0, accuracy)]
    rows = [{"way": "one", "rate": rate, "seed": str(seed), "val_accuracy": str(at)} for rate, seed, at in trained]
    assert render(chosen_table([]), rows).splitlines()[-1].startswith(shown)


def test_before_seed_0_has_chosen_the_others_are_left_out(workshop, tmp_path, capsys):
    measured, path = [], tmp_path / "chosen.csv"
    assert reproduce(chosen_table(measured), SCOPE, workshop, path, "*, [12]") == []
    assert measured == []
    assert "left out until seed 0 has chosen their settings: 4 rows" in capsys.readouterr().out


def test_stages_have_one_scale_for_each_kind_of_branch():
    scales = Scales({
        "stage0.conv": {"conv3x3": torch.tensor([1.0, 3.0])},
        "stage1.0.conv": {"conv3x3": torch.tensor([1.0, 2.0]), "conv1x1": torch.tensor([0.0, 4.0])},
        "stage1.1.conv": {"conv3x3": torch.tensor([3.0, 6.0]), "conv1x1": torch.tensor([2.0, 2.0])},
    })  # fmt: skip
    means = stage_means(scales)
    assert means["stage0.conv"]["conv3x3"].tolist() == [2.0, 2.0]
    for operator in ("stage1.0.conv", "stage1.1.conv"):
        assert {branch: scale.tolist() for branch, scale in means[operator].items()} == {
            "conv3x3": [3.0, 3.0],
            "conv1x1": [2.0, 2.0],
        }


def test_the_map_has_a_panel_for_each_model_and_share_of_the_data():
    pytest.importorskip("matplotlib", reason="needs the extra report")
    ways = ("plain SGD", "Dirac", "RepOpt, searched")
    cell = {"model": "repopt_vgg_a0", "share": "100%", "epochs": "15", "rate": "0.1", "train_accuracy": "50"}
    rows = [
        {**cell, "way": way, "seed": str(seed), "val_accuracy": str(40 + 3 * place + seed)}
        for place, way in enumerate(ways)
        for seed in range(3)
    ]
    assert set(ways) <= set(WHERE.order["way"])
    found = over_the_map(rows)
    for size, scales, share in product(("B0", "A0"), ("searched", "learned"), WHERE.order["share"]):
        assert f">{size}, {scales}: {share} of the data<" in found
    assert found.count(">50%<") == 1  # the training accuracy of the one cell that is known


@pytest.fixture
def results(tmp_path):
    """A map whose ways are better with a decay of 1e-3, each at one learning rate."""
    cell = {
        "model": "repopt_vgg_b0",
        "share": "100%",
        "epochs": "40",
        "rate": "0.1",
        "lr": "0.1",
        "train_accuracy": "50",
    }
    made = {
        "where": [{**cell, "way": way, "val_accuracy": 40 + place} for place, way in enumerate(WHERE.order["way"])],
        "decay": [
            {
                "model": cell["model"],
                "weight_decay": decay,
                "way": way,
                "val_accuracy": 60 + place - 1000 * float(decay),
            }
            | {name: cell[name] for name in ("rate", "lr", "train_accuracy")}
            for decay in ("0.001", "0.005")
            for place, way in enumerate(DECAY.order["way"])
        ],
        "one_run": [{**cell, "way": "never frozen", "val_accuracy": 50}],
    }
    for name, rows in made.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "seed"])
            writer.writeheader()
            writer.writerows({**row, "seed": seed} for row in rows for seed in range(3))
    return tmp_path


def test_the_rows_of_the_papers_decay_are_the_maps(results):
    rows = list(decayed(results))
    assert {row["way"] for row in rows if row["weight_decay"] == "4e-05"} == set(DECAY.order["way"])
    assert [line.split(" | ")[0] for line in render(DECAY, rows).splitlines()[2 :: len(DECAY.order["way"])]] == [
        "| 4e-05",
        "| 0.001",
        "| 0.005",
    ]


def test_each_way_is_shown_at_its_best_decay_the_best_first(results):
    lines = render(TUNED, list(decayed(results))).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(DECAY.order["way"])[::-1]
    assert all(" | 0.001 | " in line for line in lines)


def test_the_maps_rows_with_learned_scales_are_shown_beside_the_other_ways_to_learn_them(results):
    ways = {row["way"] for row in in_one_run(results)}
    assert {"frozen at 10%", "frozen at 30%, scales ten times as fast", "never frozen", "RepOpt, searched"} <= ways
    assert LEARNED not in ways


def test_other_data_is_shown_with_the_papers_decay_and_with_more():
    rows = list(elsewhere(RESULTS))
    shown = [line.split(" | ")[:3] for line in render(ELSEWHERE, rows).splitlines()[2:]]
    for data in ("cifar100", "imagenette"):
        assert {decay for each, decay, _ in shown if each == f"| {data}"} == {"4e-05", "0.001"}
    assert [f"| {data}", "0.001", LEARNED] in shown


def test_the_figure_over_decay_names_every_way_and_decay(results):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    rows = list(decayed(results))
    drawn = over_decay(rows)
    assert all(f">{shown}<" in drawn for shown in (*DECAY.order["way"], "4e-5", "1e-3", "5e-3"))
    first = DECAY.order["way"][0]
    assert f">{first}<" not in over_decay([row for row in rows if row["way"] != first])
