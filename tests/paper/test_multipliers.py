"""What scales imply: the multipliers of a stage, from scales that one can reckon with."""

import pytest

import repopt
from paper.multipliers import _stage_figures
from repopt.plans.scales import Scales


def test_the_figures_of_a_stage_are_those_of_its_scales():
    plan = repopt.plan(repopt.create_model("repopt_vgg_a0"))
    halves = {
        operator: {branch: scale / 2 if branch == "conv3x3" else scale for branch, scale in its.items()}
        for operator, its in Scales.ones(plan).items()
    }
    halves["stage1.1.conv"]["conv3x3"][0] = -0.01
    found = _stage_figures(plan.with_scales(halves), Scales(halves), ["stage1.0.conv", "stage1.1.conv"])
    assert found["operators"] == 2
    second = (47 * 0.25 + 1e-4) / 48
    assert found["around"] == pytest.approx((0.25 + second) / 2)
    assert found["centre"] == pytest.approx(found["around"] + 1)
    # both kernels are square, and the first, which halves the map, has no identity
    assert found["diagonal"] == pytest.approx(second + 2)
    assert found["frozen"] == found["negative"] == pytest.approx(1 / 96)
