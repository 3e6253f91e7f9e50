import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import repopt
from repopt.models import VGG_SPECS, RepOptVGG, VGGSpec, deploy
from settled import count, five_steps

# Table 1: parameters of RepVGG in training, of the deploy form, and multiply-adds at 224 in billions, to the digit
TABLE_1 = {
    "b1": (57_415_016, 51_829_480, 11.82),
    "b2": (89_022_376, 80_315_112, 18.38),
    "l1": (84_324_712, 76_018_920, 21.06),
    "l2": (131_056_296, 118_109_032, 32.83),
}


@pytest.mark.parametrize("size", TABLE_1)
def test_the_models_are_the_papers_to_the_parameter(size):
    training, deployed, multiply_adds = TABLE_1[size]
    with torch.device("meta"):
        repvgg, plain = (repopt.create_model(f"{family}_{size}") for family in ("repvgg", "repopt_vgg"))
        assert count(repvgg) == training
        assert count(deploy(repvgg)) == count(deploy(plain)) == deployed
        with FlopCounterMode(display=False) as counter:
            plain(torch.empty(1, 3, 224, 224))
    assert round(counter.get_total_flops() / 2e9, 2) == multiply_adds


@pytest.mark.parametrize(
    ("size", "depths", "factors"),
    [
        ("a0", (2, 4, 14, 1), (0.75, 0.75, 0.75, 2.5)),
        ("a1", (2, 4, 14, 1), (1, 1, 1, 2.5)),
        ("a2", (2, 4, 14, 1), (1.5, 1.5, 1.5, 2.75)),
        ("b0", (4, 6, 16, 1), (1, 1, 1, 2.5)),
        ("b3", (4, 6, 16, 1), (3, 3, 3, 5)),
    ],
)
def test_the_other_sizes_are_the_repvgg_familys(size, depths, factors):
    spec = VGG_SPECS[size]
    assert spec.depths == depths
    assert spec.widths == tuple(base * factor for base, factor in zip((64, 128, 256, 512), factors, strict=True))
    assert spec.stem_width == min(64, spec.widths[0])


def test_the_model_declares_repvggs_branches_for_every_convolution():
    model = repopt.create_model("repopt_vgg_nano", num_classes=7, in_chans=1)
    plan = repopt.plan(model, scales="ones")
    assert len(plan.operators) == 28
    assert plan.operators[0] == "stage0.conv"
    without = [name for name, block in plan.blocks.items() if "identity" not in block.branches]
    assert without == ["stage0.conv", *(f"stage{stage}.0.conv" for stage in (1, 2, 3, 4))]
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 7)


def test_squeeze_and_excitation_leaves_the_plan_as_it_is():
    plain, gated = (repopt.create_model("repopt_vgg_nano", se=se) for se in (False, True))
    assert repopt.plan(plain).operators == repopt.plan(gated).operators
    assert gated.stage1[0].se.conv_reduce.out_channels == 4
    y = gated.stage1[0].relu(gated.stage1[0].linear_part(x := torch.randn(1, 8, 8, 8)))
    torch.testing.assert_close(gated.stage1[0](x) / y.clamp(min=1e-9) * (y > 0), gates(gated.stage1[0].se, y) * (y > 0))


def gates(se, y):
    neurons = torch.einsum("oi,ni->no", se.conv_reduce.weight[..., 0, 0], y.mean((2, 3))) + se.conv_reduce.bias
    outputs = torch.einsum("oi,ni->no", se.conv_expand.weight[..., 0, 0], neurons.relu()) + se.conv_expand.bias
    return outputs.sigmoid()[..., None, None]


def test_a_stride_of_one_gives_a_first_layer_an_identity_where_channels_allow_it():
    """Table 6's variants; A1's stem and first stage are equally wide."""
    with torch.device("meta"):
        model = repopt.create_model("repopt_vgg_a1", strides=(2, 1, 2, 1, 1))
        repvgg = repopt.create_model("repvgg_a1", strides=(2, 1, 2, 1, 1))
    assert "identity" in repopt.plan(model).blocks["stage1.0.conv"].branches
    assert repvgg.stage1[0].rbr_identity is not None
    assert [each["reduction"] for each in model.feature_info] == [2, 2, 4, 4, 4]


def test_depths_and_widths_are_free():
    options = {"depths": (1, 2, 1), "widths": (4, 8, 16)}
    model = repopt.create_model("repopt_vgg_a0", **options)
    assert isinstance(model, RepOptVGG)
    assert model.spec == VGGSpec(**options)
    assert [each["num_chs"] for each in model.feature_info] == [4, 4, 8, 16]
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 1000)


@pytest.mark.parametrize("family", ["repopt_vgg", "repvgg"])
def test_kernels_start_by_the_convention(family):
    model = repopt.create_model(f"{family}_nano", kernel="paper")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan_in = module.weight[0].numel()
            torch.testing.assert_close(module.weight.std().item(), (2 / fan_in) ** 0.5, rtol=0.05, atol=0, msg=name)


def test_dropout_acts_in_training_alone():
    model = repopt.create_model("repopt_vgg_nano", dropout=0.9, num_classes=3)
    features = torch.ones(8, 128, 1, 1)
    assert model.forward_head(features, pre_logits=True).unique().numel() == 2
    assert model.eval().forward_head(features, pre_logits=True).unique().numel() == 1


@pytest.mark.parametrize("name", ["B1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("B2", "L1", "L2"))])
def test_the_released_scales_cover_every_operator_and_train(authors_scales, name):
    model = repopt.create_model(f"repopt_vgg_{name.lower()}", num_classes=10)
    plan = repopt.plan(model, scales=authors_scales / f"RepOpt-VGG-{name}-scales.pth")
    assert set(plan.scales) == set(plan.operators)
    five_steps(model, plan)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strides": (2, 2, 2)}, r"strides must be 5 numbers that are 1 or 2, .* not \(2, 2, 2\)"),
        ({"strides": (2, 2, 3, 2, 2)}, "strides must be 5 numbers"),
        ({"depths": (1, 2)}, "as many positive whole depths as widths"),
        ({"widths": (4, 0, 4, 4)}, "as many positive whole depths as widths"),
        ({"num_classes": -1}, "num_classes must be a whole number from 0 on, not -1"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\)"),
        ({"global_pool": "max"}, "global_pool is 'avg' or ''"),
        ({"global_pool": ""}, "a classifier needs pooled features"),
        ({"kernel": "he"}, "kernel is 'authors' or 'paper'"),
    ],
)
def test_what_cannot_be_built_is_said(options, words):
    with pytest.raises(ValueError, match=words):
        repopt.create_model("repopt_vgg_nano", **options)


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (3, 32, 32), (2, 3, 32), (2, 3, 0, 32)])
def test_inputs_of_another_shape_are_refused(shape):
    for options in ({}, {"features_only": True}):
        with pytest.raises(ValueError, match=r"takes images of shape \(batch, 3, height, width\), not"):
            repopt.create_model("repopt_vgg_nano", **options)(torch.randn(shape))
