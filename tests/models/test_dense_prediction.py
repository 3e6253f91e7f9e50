"""The backbones inside the models that people build for segmentation and detection."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.models import deploy, load_checkpoint
from repopt.verification.cases import mixed_sign_scales
from settled import settle

timm = pytest.importorskip("timm", reason="timm is not installed")
smp = pytest.importorskip("segmentation_models_pytorch", reason="segmentation_models_pytorch is not installed")
detection = pytest.importorskip("torchvision.models.detection", reason="torchvision is not installed")
for package in ("torchmetrics", "faster_coco_eval"):
    pytest.importorskip(package, reason=f"examples/detect.py needs {package}, which is not installed")
from timm.utils.model import freeze_batch_norm_2d  # noqa: E402
from torchvision.models.detection.anchor_utils import AnchorGenerator  # noqa: E402

import repopt.models.timm  # noqa: E402 (after the question whether timm is there)
from examples.detect import Pyramid, square  # noqa: E402

PLAIN = ["repopt_vgg_nano", pytest.param("repopt_ghostnet_050", marks=pytest.mark.slow)]
SEGMENTERS = {
    "UPerNet": partial(smp.UPerNet, decoder_channels=32),
    "FPN": smp.FPN,
    "Unet": partial(smp.Unet, decoder_channels=(32, 16, 16, 8, 8)),
    "PSPNet": smp.PSPNet,
    "DeepLabV3+": smp.DeepLabV3Plus,
    "DeepLabV3+, stride 8": partial(smp.DeepLabV3Plus, encoder_output_stride=8),
    "PAN": smp.PAN,
}
ANCHORS = AnchorGenerator(tuple((8 * 2**level,) for level in range(5)), ((1.0,),) * 5)
DETECTORS = {
    "FCOS": detection.FCOS,
    "RetinaNet": partial(detection.RetinaNet, anchor_generator=ANCHORS),
    "FasterRCNN": partial(detection.FasterRCNN, rpn_anchor_generator=ANCHORS),
}


def small_first(names):
    """The first of each in `make test`, all of them in `make test-all`."""
    first, *rest = names
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in rest)]


def segmenter(kind, encoder):
    return SEGMENTERS[kind](f"tu-{encoder}", encoder_weights=None, classes=3)


def detector(kind="FCOS", body="repopt_vgg_nano", out_indices=(2, 3, 4)):
    backbone = timm.create_model(body, features_only=True, out_indices=out_indices)
    return DETECTORS[kind](Pyramid(backbone, 64), 2, min_size=64, max_size=64)


def detection_loss(model):
    pictures, targets = zip(*(square() for _ in range(2)), strict=True)
    return sum(model(pictures, targets).values())


def check_attached_step(model, loss_of):
    """A step multiplies the gradients of the backbone's operators by their Grad Mult, and no others."""
    plan = repopt.plan(model)
    plan = plan.with_scales(mixed_sign_scales(plan))
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 0.0), lr=0.1)
    plan.init_()
    repopt.attach(optimizer, plan)
    loss_of(model).backward()
    multipliers = {f"{name}.weight": plan.multiplier(name).dense() for name in plan.operators}
    expected = {
        name: param.detach() - 0.1 * multipliers.get(name, 1) * param.grad
        for name, param in model.named_parameters()
        if param.grad is not None
    }
    assert multipliers.keys() <= expected.keys()
    optimizer.step()
    for name, param in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(param.detach(), expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("output_stride", [None, 8, 16])
@pytest.mark.parametrize("name", ["a0", pytest.param("b0", marks=pytest.mark.slow)])
def test_the_maps_have_the_shapes_of_timms_repvgg(name, output_stride):
    options = {"features_only": True} | ({} if output_stride is None else {"output_stride": output_stride})
    with torch.device("meta"):
        theirs, *ours = (
            timm.create_model(f"{family}_{name}", **options)
            for family in ("repvgg", "repopt_repvgg", "repopt_qarepvgg", "repopt_vgg")
        )
        shapes = [each.shape for each in theirs(torch.empty(2, 3, 96, 64))]
        for backbone in ours:
            assert [each.shape for each in backbone(torch.empty(2, 3, 96, 64))] == shapes
            assert backbone.feature_info.channels() == theirs.feature_info.channels()
            assert backbone.feature_info.reduction() == theirs.feature_info.reduction()


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_a_segmenter_gives_what_it_gives_on_timms_repvgg(kind):
    with torch.device("meta"):
        theirs, ours = (
            segmenter(kind, encoder)(torch.empty(2, 3, 128, 128)) for encoder in ("repvgg_a0", "repopt_vgg_a0")
        )
    assert ours.shape == theirs.shape == (2, 3, 128, 128)


@pytest.mark.parametrize("encoder", PLAIN)
@pytest.mark.parametrize("kind", small_first(SEGMENTERS))
def test_a_segmenter_takes_an_attached_step(kind, encoder):
    labels = torch.randint(3, (2, 128, 128))
    check_attached_step(
        segmenter(kind, encoder), lambda model: nn.functional.cross_entropy(model(torch.randn(2, 3, 128, 128)), labels)
    )


@pytest.mark.parametrize("body", PLAIN)
@pytest.mark.parametrize("kind", small_first(DETECTORS))
def test_a_detector_takes_an_attached_step(kind, body):
    check_attached_step(detector(kind, body), detection_loss)


@pytest.mark.parametrize("body", PLAIN)
def test_transformers_takes_the_backbone(body):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.TimmBackboneConfig(backbone=body, out_indices=[1, 2, 3, 4])
    backbone = transformers.TimmBackbone(config)
    assert backbone.channels == timm.create_model(body, features_only=True).feature_info.channels()[1:]
    pixels = torch.randn(2, 3, 64, 64)
    given = backbone(pixels, output_hidden_states=True)
    assert [each.shape[-1] for each in given.feature_maps] == [16, 8, 4, 2]
    assert len(given.hidden_states) == 5
    check_attached_step(backbone, lambda model: sum(each.square().mean() for each in model(pixels).feature_maps))


@pytest.mark.slow
def test_transformers_upernet_and_detr_take_attached_steps():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = partial(transformers.TimmBackboneConfig, backbone="repopt_vgg_nano")
    heads = {"hidden_size": 32, "auxiliary_channels": 16, "auxiliary_in_channels": 32, "num_labels": 3}
    upernet = transformers.UperNetForSemanticSegmentation(
        transformers.UperNetConfig(backbone_config=config(out_indices=[1, 2, 3, 4]), **heads)
    )
    pixels, labels = torch.randn(2, 3, 64, 64), torch.randint(3, (2, 64, 64))
    check_attached_step(upernet, lambda model: model(pixels, labels=labels).loss)
    widths = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 32)
    counts = dict.fromkeys(("encoder_layers", "decoder_layers"), 1) | {"num_queries": 5}
    detr = transformers.DetrForObjectDetection(
        transformers.DetrConfig(backbone_config=config(out_indices=[4]), **widths, **counts)
    )
    for param in detr.parameters():
        param.requires_grad_(True)  # DETR freezes the first stages
    check_attached_step(detr, lambda model: model(pixels).logits.square().mean())


class DetrFrozenBatchNorm2d(nn.Module):
    """As transformers' detectors have it: four buffers, and an eps that is in its code alone."""

    def __init__(self, norm):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone())

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]


def freeze_as_detr_does_(model):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            model.set_submodule(name, DetrFrozenBatchNorm2d(module))


FREEZE = {"FrozenBatchNorm2d": freeze_batch_norm_2d, "DetrFrozenBatchNorm2d": freeze_as_detr_does_}


@pytest.mark.parametrize("freeze_", FREEZE.values(), ids=FREEZE)
def test_a_backbone_with_frozen_norms_takes_a_checkpoint(freeze_):
    """Which counts the batches of its norms; frozen ones have no count."""
    trained, backbone = (
        settle(repopt.create_model("repopt_vgg_nano")),
        repopt.create_model("repopt_vgg_nano", features_only=True),
    )
    freeze_(backbone)
    load_checkpoint(backbone, trained.state_dict())
    assert torch.equal(backbone.stage4[0].bn.running_mean, trained.stage4[0].bn.running_mean)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(backbone(x)[-1], trained.eval().forward_features(x))


@pytest.mark.parametrize("norms", ["BatchNorm2d", "SyncBatchNorm", *FREEZE])
@pytest.mark.parametrize(
    "body", ["repopt_vgg_nano", "repopt_repvgg_nano", "repopt_qarepvgg_nano", "repopt_repghostnet_050"]
)
def test_a_detector_in_its_deploy_form_finds_the_same(body, norms):
    model = settle(detector(body=body)).eval()
    model.score_thresh = 0.0
    if norms == "SyncBatchNorm":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if norms in FREEZE:
        FREEZE[norms](model.backbone.body)
        assert any(type(module).__name__ == norms for module in model.modules())
    picture, _ = square()
    deployed = deploy(model)
    kinds = {type(module).__name__ for module in deployed.backbone.body.modules()}
    assert not kinds & {"BatchNorm2d", "SyncBatchNorm", *FREEZE}
    with torch.no_grad():
        (expected,), (found,) = model([picture]), deployed([picture])
    assert len(expected["boxes"]) > 0
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-4)


def test_a_detector_has_decay_on_its_kernels_alone():
    model = detector()
    decayed, rest = repopt.decay_groups(model, 1e-4)
    kernels = {id(module.weight) for module in model.modules() if isinstance(module, nn.Conv2d)}
    assert {id(param) for param in decayed["params"]} == kernels
    assert {id(param) for param in rest["params"]} == {id(param) for param in model.parameters()} - kernels


def test_frozen_stages_of_a_detector_stay_and_the_others_train():
    model = detector()
    frozen = {name: each for name, each in model.named_parameters() if ".stage0." in name or ".stage1." in name}
    for param in frozen.values():
        param.requires_grad_(False)
    plan = repopt.plan(model, scales="ones")
    plan.init_()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 1e-4), lr=0.01, momentum=0.9)
    repopt.attach(optimizer, plan)
    detection_loss(model).backward()
    optimizer.step()
    for name in plan.operators:
        assert torch.equal(before[f"{name}.weight"], model.state_dict()[f"{name}.weight"]) == (
            f"{name}.weight" in frozen
        )


def test_norms_may_be_synchronized_after_the_attachment():
    model = detector()
    plan = repopt.plan(model, scales="ones")
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 1e-4), lr=0.01)
    plan.init_()
    repopt.attach(optimizer, plan)
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    assert {id(param) for param in model.parameters()} == held
    assert repopt.plan(model).operators == tuple(plan.modules())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()  # as on a GPU, where a forward would have made the gradients


def test_shipped_scales_fit_a_detector_whose_backbone_ends_early():
    model, whole = detector(out_indices=(1, 2, 3)), repopt.Scales.load("repopt_vgg_nano")
    plan = repopt.plan(model, scales="repopt_vgg_nano")
    assert plan.operators[-1] == "backbone.body.stage3.15.conv"
    assert plan.scales["backbone.body.stage0.conv"]["conv3x3"].equal(whole["stage0.conv"]["conv3x3"])
    assert "ends before: stage4.0.conv" in str(plan).splitlines()[-1]
    assert whole.only(plan) == plan.scales
    assert "ends before" not in str(repopt.plan(detector(), scales="repopt_vgg_nano"))
    with pytest.raises(ValueError, match=r"scales.only\(plan\) keeps what fits"):
        repopt.plan(model, scales=whole)


def test_depths_of_a_detector_are_those_of_its_backbone():
    for name in ("repopt_vgg_nano", "repopt_ghostnet_050"):
        alone = repopt.plan(repopt.create_model(name, features_only=True)).depths()
        inside = repopt.plan(detector(body=name)).depths()
        assert inside == {f"backbone.body.{operator}": depth for operator, depth in alone.items()}


def test_two_backbones_are_both_planned_and_a_shared_one_once():
    body = repopt.create_model("repopt_vgg_nano", features_only=True)
    pair = nn.ModuleDict({"left": body, "right": copy.deepcopy(body)})
    plan = repopt.plan(pair, scales="repopt_vgg_nano")
    assert {name.partition(".")[0] for name in plan.operators} == {"left", "right"}
    shared = repopt.plan(nn.ModuleDict({"left": body, "right": body}), {r"^left\.stage0\.conv$": [Conv(3), Conv(1)]})
    assert shared.operators == ("left.stage0.conv",)
    assert len(repopt.plan(nn.ModuleDict({"left": body, "right": body})).operators) == 28


def test_of_two_backbones_one_may_end_early():
    """What it lacks of the scales, the other has."""
    long, short = (repopt.create_model("repopt_vgg_nano", features_only=True, out_indices=each) for each in (5, (1, 2)))
    plan = repopt.plan(nn.ModuleDict({"long": long, "short": short}), scales="repopt_vgg_nano")
    whole = repopt.Scales.load("repopt_vgg_nano")
    assert plan.scales["long.stage4.0.conv"]["conv3x3"].equal(whole["stage4.0.conv"]["conv3x3"])
    assert plan.scales["short.stage2.0.conv"]["conv3x3"].equal(whole["stage2.0.conv"]["conv3x3"])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            lambda: repopt.plan(detector(body="resnet18")),
            "FCOS does not declare its branches .*, nor does a module in it",
        ),
        (lambda: repopt.plan(detector(body="repopt_repvgg_nano")), "has real branches and declares none to imagine"),
        (
            lambda: repopt.plan(detector(), scales="repopt_vgg_a0"),
            "has 48 entries: it must be .* each of the 8 output channels .*searched for repopt_vgg_a0",
        ),
        (lambda: repopt.plan(detector(), scales="repopt_vgg_l1"), "which the plan does not hold"),
        (
            lambda: timm.create_model("repopt_vgg_nano", features_only=True, output_stride=5),
            "output_stride is 8, 16 or 32, not 5",
        ),
        (
            lambda: repopt.plan(detector(), {r"backbone\.neck$": [Conv(3), Identity()]}),
            "matches no module; the linear operators are 'backbone.body.stage0.conv'",
        ),
        (
            lambda: repopt.plan(detector(), scales="ones").on(detector(out_indices=(2, 3))),
            "the model has no linear operator 'backbone.body.stage4.0.conv', which the plan names",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(act, words):
    with pytest.raises(ValueError, match=words):
        act()
