import pytest
import torch

import repopt
from repopt.models import VGG_SPECS


def test_every_listed_model_can_be_built():
    assert repopt.list_models() == sorted(VGG_SPECS)
    with torch.device("meta"):
        for name in repopt.list_models():
            repopt.create_model(name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("repopt_vgg_b1", 51_829_480),
        ("repopt_vgg_b2", 80_315_112),
        ("repopt_vgg_l1", 76_018_920),
        ("repopt_vgg_l2", 118_109_032),
    ],
)
def test_parameters_are_the_papers_once_the_norm_is_a_bias(name, parameters):
    with torch.device("meta"):
        model = repopt.create_model(name)
    norms = sum(module.num_features for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    assert sum(param.numel() for param in model.parameters()) - norms == parameters


def test_the_model_declares_repvggs_branches_for_every_convolution():
    model = repopt.create_model("repopt_vgg_nano", num_classes=7, in_chans=1)
    plan = repopt.plan(model, scales="ones")
    assert len(plan.operators) == 28
    assert plan.operators[0] == "stage0.conv"
    without = [name for name, block in plan.blocks.items() if "identity" not in block.branches]
    assert without == ["stage0.conv", *(f"stage{stage}.0.conv" for stage in (1, 2, 3, 4))]
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", ["B1", "B2", "L1", "L2"])
def test_the_released_scales_cover_every_operator(authors_scales, name):
    with torch.device("meta"):
        model = repopt.create_model(f"repopt_vgg_{name.lower()}")
    plan = repopt.plan(model, scales=authors_scales / f"RepOpt-VGG-{name}-scales.pth")
    assert set(plan.scales) == set(plan.operators)


def test_an_unknown_model_names_near_ones():
    with pytest.raises(ValueError, match="no model 'repopt_vgg_b9'; there is repopt_vgg_b"):
        repopt.create_model("repopt_vgg_b9")
