import math

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv
from repopt.models import deploy
from settled import count, five_steps, settle


def test_the_smallest_net_has_the_known_number_of_parameters():
    assert count(deploy(repopt.create_model("repghostnet_050"))) == 2_302_956
    assert count(deploy(repopt.create_model("repopt_ghostnet_050"))) == 2_302_956


@pytest.mark.parametrize("family", ["repghostnet", "repopt_ghostnet"])
def test_the_deploy_form_computes_what_the_net_computes(family):
    model = settle(repopt.create_model(f"{family}_050", num_classes=5)).double().eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    expected = model(x)
    deployed = deploy(model)
    torch.testing.assert_close(deployed(x), expected, rtol=1e-11, atol=1e-11)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in deployed.modules())
    torch.testing.assert_close(deploy(deployed)(x), deployed(x))


def test_the_plan_holds_every_cheap_operation_with_its_identity():
    model = repopt.create_model("repopt_ghostnet_100")
    plan = repopt.plan(model)
    assert len(plan.operators) == 32
    assert all(tuple(block.branches) == ("conv3x3", "identity") for block in plan.blocks.values())


def test_the_scales_start_as_in_the_authors_code():
    """sqrt(2/(n+1)), n counting modules from 1 in each block that changes the shape."""
    model = repopt.create_model("repopt_ghostnet_050")
    scales = repopt.Scales.depth_init(repopt.plan(model))
    expected = {"blocks.5.0": (1, 2), "blocks.6.0": (3, 4), "blocks.6.1": (5, 6), "blocks.6.3": (1, 2)}
    for block, numbers in expected.items():
        for module, number in zip(("ghost1", "ghost2"), numbers, strict=True):
            scale = scales[f"{block}.{module}.cheap_operation.0"]["conv3x3"]
            torch.testing.assert_close(scale, torch.full_like(scale, math.sqrt(2 / (number + 1))))


def test_a_plan_that_the_declared_depths_do_not_cover_is_said():
    model = repopt.create_model("repopt_ghostnet_050")
    plan = repopt.plan(model, {r"conv_stem$": [Conv(3), Conv(1)]})
    with pytest.raises(ValueError, match=r"repopt_depths\(\) does not say how deep 'conv_stem' lies"):
        repopt.search_model(model, plan)
    assert repopt.extract_scales(repopt.search_model(model, plan, start=1.0))


def test_the_released_scales_cover_every_operator_and_train(authors_scales):
    model = repopt.create_model("repopt_ghostnet_050", num_classes=10)
    plan = repopt.plan(model, scales=authors_scales / "RepOptGhostNet_0_5x_scales.pth")
    assert set(plan.scales) == set(plan.operators)
    five_steps(model, plan)
