import copy

import pytest
import torch

import repopt
from repopt.models import deploy, load_checkpoint
from repopt.verification.cases import mixed_sign_scales

SMALL = [name for name in repopt.list_models() if name.endswith(("_nano", "_050"))]


@pytest.mark.parametrize("name", repopt.list_models())
def test_the_maps_have_the_declared_channels_and_strides(name):
    with torch.device("meta"):
        backbone = repopt.create_model(name, features_only=True)
        maps = backbone(torch.empty(2, 3, 96, 64))
    declared = zip(backbone.feature_info.channels(), backbone.feature_info.reduction(), strict=True)
    assert [tuple(each.shape) for each in maps] == [(2, width, 96 // step, 64 // step) for width, step in declared]
    assert backbone.feature_info.reduction() == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("name", SMALL)
def test_the_backbone_is_the_model_without_its_head(name):
    model = repopt.create_model(name).eval()
    backbone = repopt.create_model(name, features_only=True, out_indices=(1, -2)).eval()
    assert backbone.feature_info.out_indices == (1, 3)
    kept = {key: value for key, value in model.state_dict().items() if key in backbone.state_dict()}
    backbone.load_state_dict(kept)
    x = torch.randn(1, 3, 64, 64)
    maps = backbone(x)
    for name in model.steps:
        x = model.get_submodule(name)(x)
        if name in backbone.feature_info.module_name():
            torch.testing.assert_close(maps.pop(0), x)
    assert not maps
    assert model.steps[-1] not in dict(backbone.named_modules())


def test_a_plain_backbone_is_planned_as_the_model_is():
    for name in ("repopt_vgg_nano", "repopt_ghostnet_050"):
        model, backbone = (repopt.create_model(name, features_only=only) for only in (False, True))
        plan, whole = repopt.plan(backbone), repopt.plan(model)
        assert plan.operators == whole.operators
        assert plan.depths() == whole.depths()
        plan = plan.with_scales(mixed_sign_scales(plan))
        plan.init_()
        repopt.attach(torch.optim.SGD(backbone.parameters(), lr=0.1), plan)
    with pytest.raises(ValueError, match="has real branches and declares none to imagine"):
        repopt.plan(repopt.create_model("repvgg_nano", features_only=True))


@pytest.mark.parametrize("name", SMALL)
def test_a_backbone_takes_the_checkpoint_and_the_scales_of_the_whole_model(name):
    model, backbone = repopt.create_model(name), repopt.create_model(name, features_only=True, out_indices=(1, 2))
    load_checkpoint(backbone, model.state_dict())
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in backbone.state_dict().items())
    if name.startswith("repopt_"):
        plan = repopt.plan(backbone)
        scales = repopt.Scales.ones(repopt.plan(model))
        with pytest.raises(ValueError, match=r"scales.only\(plan\) keeps what fits"):
            plan.with_scales(scales)
        assert set(plan.with_scales(scales.only(plan)).scales) == set(plan.operators)


def test_one_number_asks_for_the_last_maps_as_in_timm():
    assert repopt.create_model("repopt_vgg_nano", features_only=True, out_indices=2).feature_info.out_indices == (3, 4)


@pytest.mark.parametrize("name", SMALL)
def test_a_backbone_has_a_deploy_form(name):
    backbone = repopt.create_model(name, features_only=True)
    for _ in range(2):
        backbone(torch.randn(4, 3, 32, 32))
    deployed = deploy(copy.deepcopy(backbone.eval()))
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in deployed.modules())
    x = torch.randn(1, 3, 64, 64)
    for ours, expected in zip(deployed(x), backbone(x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
