"""Seed 0 chooses a learning rate, the other seeds are trained with it alone, and a line shows these."""

import statistics
from pathlib import Path

import pytest
import torch

from paper.evidence import WHERE, stage_means
from paper.jobs import Scope, Training
from paper.tables import Table, reproduce, rows_left
from paper.view import SEEDS, accuracy, read_rows, render
from paper.workshop import Workshop
from paper.worth_figures import drawings
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
        figures=("val_accuracy",),
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


def test_where_there_is_one_rate_no_seed_chooses_and_all_are_shown(workshop, tmp_path):
    measured, path = [], tmp_path / "chosen.csv"
    table = chosen_table(measured, rates=("low",))
    reproduce(table, SCOPE, workshop, path, "*, [12]")
    assert measured == [("low", 1), ("low", 2)]
    reproduce(table, SCOPE, workshop, path)
    accuracies = [ACCURACIES["low"][seed] for seed in (0, 1, 2)]
    shown = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
    assert render(table, read_rows(path)).splitlines()[-1] == f"| one | low | 3 | {shown} |"


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


def test_the_figures_have_every_way_and_a_point_for_each_known_cell():
    pytest.importorskip("matplotlib", reason="needs the extra report")
    ways = ("plain SGD", "Dirac", "RepOpt, searched")
    cell = {"model": "repopt_vgg_b0", "share": "100%", "epochs": "15", "rate": "0.1", "train_accuracy": "50"}
    rows = [
        {**cell, "way": way, "seed": str(seed), "val_accuracy": str(40 + 3 * place + seed)}
        for place, way in enumerate(ways)
        for seed in range(3)
    ]
    assert set(ways) <= set(WHERE.order["way"])
    found = drawings(rows)
    assert all(f">{way}<" in found["ways"] for way in ways)
    assert found["where"].count("RepVGG") > 0
