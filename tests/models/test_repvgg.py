import copy

import pytest
import torch
from torch import nn

import repopt
from repopt.models import RepOptVGG, deploy, plain_from_repvgg
from repopt.models.repvgg import RepVGGBlock
from settled import settle


def settled_block(norm_after=False, stride=1):
    return settle(RepVGGBlock(6, 6, stride, norm_after=norm_after)).double().eval()


def test_a_block_is_the_three_branches_with_a_norm_each():
    block = settled_block()
    x = torch.randn(2, 6, 7, 7, dtype=torch.float64)
    dense, pointwise = block.rbr_dense, block.rbr_1x1
    expected = dense.bn(dense.conv(x)) + pointwise.bn(pointwise.conv(x)) + block.rbr_identity(x)
    torch.testing.assert_close(block(x), expected.relu())


def test_qarepvgg_has_one_norm_on_the_3x3_and_one_behind_the_sum():
    block = settled_block(norm_after=True)
    x = torch.randn(2, 6, 7, 7, dtype=torch.float64)
    expected = block.bn(block.rbr_dense.bn(block.rbr_dense.conv(x)) + block.rbr_1x1(x) + x)
    torch.testing.assert_close(block(x), expected.relu())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in block.modules()) == 2


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("norm_after", [False, True])
def test_the_kernels_on_the_way_to_the_deploy_form(norm_after, stride):
    """Each stage computes what the block computes: branch by branch after fusion, in one after addition."""
    block = settled_block(norm_after, stride)
    kernels = block.kernels()
    x = torch.randn(2, 6, 7, 7, dtype=torch.float64)
    expected = block.linear_part(x)
    conv = nn.functional.conv2d
    fused = conv(x, kernels.fused["conv3x3"], kernels.bias, stride, 1) + conv(x, kernels.fused["conv1x1"], None, stride)
    if stride == 1:
        fused = fused + kernels.fused["identity"].view(-1, 1, 1) * x
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(conv(x, kernels.added, kernels.bias, stride, 1), expected)
    assert torch.equal(kernels.trained["conv3x3"], block.rbr_dense.conv.weight)
    assert ("identity" in kernels.trained) == (stride == 1)
    assert kernels.added.requires_grad is False


@pytest.mark.parametrize("options", [{}, {"se": True}, {"strides": (1, 2, 1, 2, 1)}])
@pytest.mark.parametrize("family", ["repvgg", "qarepvgg", "repopt_vgg"])
def test_the_deploy_form_computes_what_the_model_computes(family, options):
    model = settle(repopt.create_model(f"{family}_nano", num_classes=5, **options)).double().eval()
    deployed = deploy(model)
    assert {type(module) for module in deployed.modules()}.isdisjoint({nn.BatchNorm2d})
    x = torch.randn(2, 3, 40, 40, dtype=torch.float64)
    torch.testing.assert_close(deployed(x), model(x), rtol=1e-11, atol=1e-11)
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with pytest.raises(ValueError, match="this Linear has no deploy form"):
        deploy(nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["repvgg_nano", "qarepvgg_nano", "repopt_vgg_nano", "repghostnet_050"])
def test_norms_synchronized_over_ranks_are_folded_as_well(name):
    model = settle(repopt.create_model(name, num_classes=5)).eval()
    x = torch.randn(2, 3, 64, 64)
    expected = model(x)
    synchronized = deploy(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    torch.testing.assert_close(synchronized(x), expected, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in synchronized.modules())


def test_what_cannot_be_folded_is_said():
    model = repopt.create_model("repopt_vgg_nano")
    with pytest.raises(ValueError, match=r"give repopt.merge\(model\)"):
        deploy(repopt.search_model(model, repopt.plan(model)))
    for name in ("repopt_vgg_nano", "qarepvgg_nano"):
        model = repopt.create_model(name)
        model.stage0.bn = nn.GroupNorm(1, 8)
        with pytest.raises(ValueError, match="a GroupNorm cannot be folded"):
            deploy(model)


def test_frozen_kernels_and_memory_formats_are_kept():
    repvgg = settle(repopt.create_model("repvgg_nano")).to(memory_format=torch.channels_last)
    repvgg.requires_grad_(False)
    assert not any(param.requires_grad for param in deploy(repvgg).parameters())
    loader = [(torch.randn(4, 3, 32, 32), torch.arange(4))]
    plain = plain_from_repvgg(repvgg, images=loader)
    assert plain.stage1[1].conv.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("hook", ["switch_to_deploy", "reparameterize", "fuse"])
@pytest.mark.parametrize("family", ["repvgg", "qarepvgg", "repopt_vgg"])
def test_the_hooks_of_other_tools_convert_in_place(family, hook):
    model = settle(repopt.create_model(f"{family}_nano")).eval()
    x = torch.randn(1, 3, 32, 32)
    expected = model(x)
    for _ in range(2):
        returned = getattr(model.stage1[1], hook)()
        assert returned is (model.stage1[1] if hook == "fuse" else None)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.stage1[1].modules())
    getattr(model, hook)()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    if family != "repopt_vgg":
        with pytest.raises(ValueError, match="in its deploy form, which has one kernel a block"):
            model.stage1[1].kernels()


def test_converted_weights_load_into_a_model_built_in_the_deploy_form():
    model = deploy(settle(repopt.create_model("repvgg_nano")))
    other = repopt.create_model("repvgg_nano", deploy=True)
    other.load_state_dict(model.state_dict())
    assert list(other.state_dict())[:2] == ["stage0.rbr_reparam.weight", "stage0.rbr_reparam.bias"]


@pytest.mark.parametrize("options", [{}, {"se": True, "strides": (2, 1, 2, 2, 1)}])
@pytest.mark.parametrize("family", ["repvgg", "qarepvgg"])
def test_a_plain_model_starts_from_a_trained_repvgg(family, options):
    """In eval mode as it is; in train mode up to the batch's own statistics, once the norms have seen images."""
    repvgg = settle(repopt.create_model(f"{family}_nano", num_classes=5, **options)).double().eval()
    x = torch.randn(64, 3, 32, 32, dtype=torch.float64)
    plain = plain_from_repvgg(copy.deepcopy(repvgg))
    assert isinstance(plain, RepOptVGG)
    torch.testing.assert_close(plain(x), repvgg(x), rtol=1e-10, atol=1e-10)
    measured = plain_from_repvgg(repvgg, images=[x[:32], x[32:]])
    torch.testing.assert_close(measured(x), repvgg(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(measured.train()(x), repvgg(x), rtol=1e-8, atol=1e-8)
    assert (plain.train()(x) - repvgg(x)).abs().max() > 1e-3


def test_only_a_repvgg_is_taken_to_a_plain_model():
    with pytest.raises(TypeError, match="takes a RepVGG, not a RepOptVGG"):
        plain_from_repvgg(repopt.create_model("repopt_vgg_nano"))
