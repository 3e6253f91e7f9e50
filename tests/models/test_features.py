import copy

import pytest
import torch

import repopt
from repopt.models import deploy, load_checkpoint, plain_from_repvgg
from repopt.models.squeeze import SqueezeExcite
from repopt.verification.cases import mixed_sign_scales
from settled import settle

SMALL = [name for name in repopt.list_models() if name.endswith(("_nano", "_050"))]
# every size of the plain families; the sizes of a family with branches are the same ones
FIRST = [name for name in repopt.list_models() if name.startswith("repopt_") or name in SMALL]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST)) for name in repopt.list_models()]
)
def test_the_maps_have_the_declared_channels_and_strides(name):
    with torch.device("meta"):
        backbone = repopt.create_model(name, features_only=True)
        maps = backbone(torch.empty(2, 3, 96, 64))
    declared = zip(backbone.feature_info.channels(), backbone.feature_info.reduction(), strict=True)
    assert [tuple(each.shape) for each in maps] == [(2, width, 96 // step, 64 // step) for width, step in declared]
    assert backbone.feature_info.reduction() == [2, 4, 8, 16, 32]


def test_the_stages_are_described_as_timm_describes_them():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    about = repopt.create_model("repopt_vgg_nano", features_only=True, out_indices=(1, 3)).feature_info
    theirs = timm.models.FeatureInfo(copy.deepcopy(list(about.info)), about.out_indices)
    for which in ({}, {"idx": 2}, {"idx": [0, 4]}):
        for method in ("channels", "reduction", "module_name", "get_dicts"):
            assert getattr(about, method)(**which) == getattr(theirs, method)(**which)
        assert about.get("index", **which) == theirs.get("index", **which)
        assert about.get_dicts(["module"], **which) == theirs.get_dicts(["module"], **which)
    assert about[2] == theirs[2]
    assert about.from_other((0, 2)).channels() == theirs.from_other((0, 2)).channels()


@pytest.mark.parametrize("out_indices", [0, -1, 6, 7, (5,), (-6,), (), "1", (1.0,)])
def test_stages_that_are_not_there_are_refused(out_indices):
    with pytest.raises(ValueError, match="from 0 to 4, or one from 1 to 5 for that many of the last stages, not"):
        repopt.create_model("repopt_vgg_nano", features_only=True, out_indices=out_indices)


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


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("output_stride", [8, 16])
def test_a_dilated_map_has_the_undilated_one_at_every_dth_pixel(name, output_stride):
    """Strides become dilation at the same receptive fields, and any checkpoint fits."""
    plain, dilated = (
        repopt.create_model(name, features_only=True, output_stride=stride).double().eval()
        for stride in (None, output_stride)
    )
    dilated.load_state_dict(plain.state_dict())
    for backbone in (plain, dilated):
        for block in backbone.modules():
            if isinstance(block, SqueezeExcite):  # looks at the whole map
                block.forward = lambda x: x
    x = torch.randn(1, 3, 96, 64, dtype=torch.float64)
    reductions = [min(step, output_stride) for step in plain.feature_info.reduction()]
    assert dilated.feature_info.reduction() == reductions
    deployed = deploy(dilated)
    for ours, folded, expected, step in zip(dilated(x), deployed(x), plain(x), (2, 4, 8, 16, 32), strict=True):
        distance = max(1, step // output_stride)
        torch.testing.assert_close(ours[..., ::distance, ::distance], expected)
        torch.testing.assert_close(folded, ours)


@pytest.mark.parametrize("name", ["repopt_vgg_nano", "repopt_ghostnet_050"])
def test_the_equality_holds_for_a_dilated_backbone(name):
    backbone = repopt.create_model(name, features_only=True, output_stride=8).double()
    plan = repopt.plan(backbone)
    assert any(2 in block.operator.dilation for block in plan.blocks.values())
    plan = plan.with_scales(mixed_sign_scales(plan))
    report = repopt.verify(backbone, plan, lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), steps=5)
    assert report.worst <= 1e-10


def test_a_dilated_repvgg_turns_into_a_dilated_plain_model():
    repvgg = settle(repopt.create_model("repvgg_nano", num_classes=3, output_stride=8)).double().eval()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(plain_from_repvgg(repvgg)(x), repvgg(x))


def test_a_backbone_describes_its_maps_as_timm_does():
    info = repopt.create_model("repopt_vgg_nano", features_only=True, out_indices=(1, 3)).feature_info
    assert [stage["index"] for stage in info.get_dicts()] == [1, 3]
    assert info.get_dicts(["module", "num_chs"])[1] == {"module": "stage3", "num_chs": 32}


@pytest.mark.parametrize("name", ["repvgg_nano", "repghostnet_050"])
def test_an_output_stride_that_no_backbone_has_is_refused_in_a_sentence(name):
    with pytest.raises(ValueError, match="output_stride is 8, 16 or 32, not 5"):
        repopt.create_model(name, output_stride=5)
