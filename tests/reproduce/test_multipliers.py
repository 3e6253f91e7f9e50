"""What scales imply: the multipliers of a stage, from scales that one can reckon with."""

import pytest

import repopt
from repopt.reproduce.multipliers import _stage_figures
from repopt.scales import Scales


def test_the_figures_of_a_stage_are_those_of_its_scales():
    plan = repopt.plan(repopt.create_model("repopt_vgg_nano"))
    halves = {
        operator: {branch: scale / 2 if branch == "conv3x3" else scale for branch, scale in its.items()}
        for operator, its in Scales.ones(plan).items()
    }
    halves["stage1.1.conv"]["conv3x3"][0] = -0.01
    found = _stage_figures(plan.with_scales(halves), Scales(halves), ["stage1.0.conv", "stage1.1.conv"])
    assert found["operators"] == 2
    assert found["around"] == pytest.approx((0.25 + (15 * 0.25 + 1e-4) / 16) / 2)
    assert found["centre"] == pytest.approx(found["around"] + 1)
    assert found["diagonal"] == pytest.approx((15 * 0.25 + 1e-4) / 16 + 2)  # one of the two has an identity
    assert found["frozen"] == found["negative"] == pytest.approx(1 / 32)
