"""What scales imply: the multipliers of a stage, from scales that one can reckon with."""

import pytest
import torch

import repopt
from paper.scale_figures import mean_figures, operator_figures
from repopt.plans.scales import Scales


def test_the_figures_of_a_stage_are_those_of_its_scales():
    plan = repopt.plan(repopt.create_model("repopt_vgg_a0"))
    halves = {
        operator: {branch: scale / 2 if branch == "conv3x3" else scale for branch, scale in scales.items()}
        for operator, scales in Scales.ones(plan).items()
    }
    halves["stage1.1.conv"]["conv3x3"][0] = -0.01
    plan = plan.with_scales(halves)
    # both kernels are square, and the first, which halves the map, has no identity
    stage = {"stage1.0.conv": False, "stage1.1.conv": True}
    figures = [
        operator_figures(plan.multiplier(name).dense(), halves[name]["conv3x3"], identity=identity)
        for name, identity in stage.items()
    ]
    found = mean_figures(figures)
    second = (47 * 0.25 + 1e-4) / 48
    assert found["around"] == pytest.approx((0.25 + second) / 2)
    assert found["centre"] == pytest.approx(found["around"] + 1)
    assert found["diagonal"] == pytest.approx(second + 2)
    assert found["frozen"] == found["negative"] == pytest.approx(1 / 96)


def test_a_stage_without_identities_has_no_diagonal():
    found = mean_figures([operator_figures(torch.ones(4, 4, 3, 3), torch.ones(4), identity=False)])
    assert found["diagonal"] is None
    assert found["variation"] == 0
