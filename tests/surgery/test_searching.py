"""Search models, and what holds for every kind of surgery."""

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.surgery.blocks import LinearAdditionBlock, SearchBlock
from repopt.surgery.conversion import csla_blocks, csla_model, extract_scales, search_blocks, search_model
from repopt.verification.cases import mixed_sign_scales
from surgery.nets import planned, small_net


def grads_of(model):
    return {name: param.grad for name, param in model.named_parameters()}


class Own(nn.Module):
    """Depthwise, grouped and dilated convolutions and a Linear."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.dilated = nn.Conv2d(8, 8, 5, padding=4, dilation=2, padding_mode="reflect")
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x).relu()
        x = self.grouped(self.depthwise(x)).relu()
        return self.fc(self.dilated(x).relu().mean((2, 3)))


OWN_BRANCHES = {
    "stem": [Conv(3), Conv(1), Identity()],
    "depthwise": [Conv(3), Identity()],
    "grouped": [Conv(3), Conv(1, groups=4), Identity()],
    "dilated": [Conv(3, dilation=2), Conv(3), Conv(1)],
    "fc": [repopt.Linear(), Identity()],
}
NETS = {
    "vgg": lambda: (repopt.create_model("repopt_vgg_nano", num_classes=5), None),
    "ghost": lambda: (repopt.create_model("repopt_ghostnet_050", num_classes=5, dropout=0), None),
    "own": lambda: (Own(), OWN_BRANCHES),
}


@pytest.fixture(params=NETS)
def net_and_plan(request):
    net, branches = NETS[request.param]()
    net = net.double()
    return net, repopt.plan(net, branches)


def test_the_search_model_computes_and_learns_what_its_branches_written_out_do(net_and_plan):
    """Merging kernels first changes neither the outputs nor any gradient, those of the scales included."""
    net, plan = net_and_plan
    search = search_model(net, plan, start=mixed_sign_scales(plan))
    kernels = {name: dict(block.kernels.items()) for name, block in search_blocks(search).items()}
    twin = csla_model(repopt.merge(search), plan.with_scales(extract_scales(search)), kernels)
    for block in csla_blocks(twin).values():
        for scale in block.branch_scales().values():
            scale.requires_grad_()
    x = torch.randn(8, 3, 64, 64, dtype=torch.float64)  # a norm over a few values only would magnify rounding
    weight = torch.randn(8, 8 if isinstance(net, Own) else 5, dtype=torch.float64)
    outputs, expected = search(x), twin(x)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12 * float(expected.detach().abs().max()))
    for y in (outputs, expected):
        (y * weight).sum().backward()
    wanted = grads_of(twin)
    for name, block in csla_blocks(twin).items():
        wanted |= {f"{name}.scales.{branch}": scale.grad for branch, scale in block.branch_scales().items()}
    size = max(float(grad.abs().max()) for grad in wanted.values())
    for name, grad in grads_of(search).items():
        assert grad is not None, name
        torch.testing.assert_close(grad, wanted[name], rtol=1e-12, atol=1e-12 * size)


@pytest.mark.parametrize("training", [True, False])
def test_merging_a_search_model_keeps_what_it_computes(net_and_plan, training):
    net, plan = net_and_plan
    search = search_model(net.train(training), plan, start="paper")
    merged = repopt.merge(search)
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    expected = search(x)
    torch.testing.assert_close(merged(x), expected, rtol=1e-12, atol=1e-12 * float(expected.detach().abs().max()))
    assert list(merged.state_dict()) == list(net.state_dict())
    assert repr(merged) == repr(net)


@pytest.mark.parametrize(("start", "values"), [("authors", (1, 2**0.5, 1)), ("paper", (2**0.5, 1, (2 / 3) ** 0.5))])
def test_the_scales_start_by_the_depth_in_the_stage(start, values):
    net = repopt.create_model("repopt_vgg_nano")
    scales = extract_scales(search_model(net, repopt.plan(net), start=start))
    for layer, value in enumerate(values):
        torch.testing.assert_close(scales[f"stage1.{layer}.conv"]["conv1x1"], torch.full((16,), float(value)))
    assert scales["stage1.1.conv"]["identity"].eq(1).all()
    assert "identity" not in scales["stage1.0.conv"]


def test_the_scales_may_start_anywhere():
    net = Own()
    plan = repopt.plan(net, OWN_BRANCHES)
    same = extract_scales(search_model(net, plan, start=0.5))
    assert all(
        scale.eq(1 if branch == "identity" else 0.5).all() for it in same.values() for branch, scale in it.items()
    )
    searched = extract_scales(search_model(net, plan, start=0.25))
    searched = repopt.Scales({**searched, "fc": {"linear": 0.25, "identity": torch.arange(8.0)}})
    again = extract_scales(search_model(net, plan, start=searched))
    assert torch.equal(again["fc"]["identity"], torch.arange(8.0))
    assert set(again) == set(plan.operators)


def test_searched_scales_are_saved_and_planned_with(tmp_path):
    net = Own()
    plan = repopt.plan(net, OWN_BRANCHES)
    search = search_model(net, plan)
    optimizer = torch.optim.SGD(repopt.decay_groups(search, 1e-4), lr=0.1)
    search(torch.randn(4, 3, 16, 16)).square().mean().backward()
    optimizer.step()
    scales = extract_scales(search)
    scales.save(tmp_path / "own.safetensors")
    trained = plan.with_scales(tmp_path / "own.safetensors")
    assert set(trained.scales) == set(plan.operators)
    assert scales["stem"]["conv3x3"].unique().numel() > 1


def test_the_convention_draws_the_search_models_kernels():
    net = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False))
    plan = repopt.plan(net, {"0": [Conv(3), Conv(1)]})
    stds = {
        kernel: search_model(net, plan, kernel=kernel, generator=torch.Generator().manual_seed(0))[0].kernels
        for kernel in ("authors", "paper")
    }
    torch.testing.assert_close(stds["paper"]["conv1x1"].std().item(), (2 / 64) ** 0.5, rtol=0.05, atol=0)
    torch.testing.assert_close(stds["authors"]["conv3x3"].std().item(), (1 / (3 * 576)) ** 0.5, rtol=0.05, atol=0)


@pytest.mark.parametrize("surgery", [csla_model, search_model])
def test_surgery_keeps_what_the_operator_has(surgery):
    """Dtype, memory format, training flags, frozen weights and hooks; a hook's handle still removes it."""
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)).to(
        memory_format=torch.channels_last
    )
    net.double()[0].eval()
    net[1].requires_grad_(False)
    seen = []
    handle = net[0].register_forward_hook(lambda module, args, output: seen.append(module))
    rewritten = surgery(net, planned(net, {"0|1": [Conv(3), Conv(1), Identity()]}), inplace=True)
    assert rewritten is net
    block = net[0]
    assert isinstance(block, LinearAdditionBlock)
    assert block.kernels["conv3x3"].dtype == torch.float64
    assert block.kernels["conv3x3"].is_contiguous(memory_format=torch.channels_last)
    assert (block.training, net[1].training) == (False, True)
    assert not any(param.requires_grad for param in net[1].parameters())
    x = torch.randn(1, 4, 6, 6, dtype=torch.float64)
    net(x)
    assert seen == [block]
    merged = repopt.merge(net, inplace=True)
    assert merged is net
    net(x)
    assert isinstance(seen[1], nn.Conv2d)
    handle.remove()
    net(x)
    assert len(seen) == 2


def test_a_block_says_of_its_shape_what_the_operator_says():
    net = Own()
    search = search_model(net, repopt.plan(net, OWN_BRANCHES))
    assert (search.stem.stride, search.grouped.groups, search.fc.out_features) == ((2, 2), 2, 8)
    assert "bias=True" in repr(search.stem)
    assert "bias=False" in repr(search.depthwise)


def test_an_operator_reached_under_two_names_has_the_scales_of_its_planned_one():
    net = small_net()
    net.add_module("alias", net[0])
    for name in ("^0$", "^alias$"):
        plan = repopt.plan(net, {name: [Conv(3), Conv(1)]})
        assert tuple(extract_scales(search_model(net, plan))) == plan.operators


def test_surgery_in_place_that_fails_changes_nothing():
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    plan = planned(net, {"0|1": [Conv(3), Conv(1)]})
    with pytest.raises(ValueError, match="the kernels lack branch"):
        csla_model(net, plan, {"0": plan.init_()["0"]}, inplace=True)
    assert all(isinstance(module, nn.Conv2d) for module in net)


def test_merging_keeps_the_memory_format_that_the_model_has_then():
    net = nn.Sequential(nn.Conv2d(4, 4, 3))
    search = search_model(net, repopt.plan(net, {"0": [Conv(3), Conv(1)]})).to(memory_format=torch.channels_last)
    assert repopt.merge(search)[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_surgery_stays_on_the_device():
    net = Own().cuda()
    plan = repopt.plan(net, OWN_BRANCHES)
    search = search_model(net, plan)
    x = torch.randn(2, 3, 16, 16, device="cuda")
    search(x).sum().backward()
    scales = extract_scales(search)
    twin = csla_model(repopt.merge(search), plan.with_scales(scales))
    assert {tensor.device.type for tensor in twin.state_dict().values()} == {"cuda"}
    torch.testing.assert_close(twin(x), search(x), rtol=1e-3, atol=1e-3)


def test_by_default_surgery_works_on_a_copy():
    net = Own()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    search = search_model(net, repopt.plan(net, OWN_BRANCHES))
    assert isinstance(net.stem, nn.Conv2d)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    repopt.merge(search)
    assert isinstance(search.stem, SearchBlock)


def test_an_attention_layer_can_be_searched_and_written_out():
    """It reads its projection's weight instead of calling it."""
    net = nn.MultiheadAttention(8, 2, batch_first=True).double()
    plan = repopt.plan(net, {"out_proj": [repopt.Linear(), repopt.Linear()]}, scales="ones")
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    torch.testing.assert_close(csla_model(net, plan)(x, x, x)[0], net(x, x, x)[0])
    search = search_model(net, plan)
    search(x, x, x)[0].sum().backward()
    assert search.out_proj.scales["linear_2"].grad is not None


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda net, plan: search_model(nn.Linear(2, 2), plan), ValueError, "no linear operator 'stem'"),
        (lambda net, plan: search_model(net, "plan"), TypeError, "plan is what repopt.plan"),
        (lambda net, plan: search_model(net, plan, start="deep"), FileNotFoundError, "'deep' is neither 'ones'"),
        (lambda net, plan: search_model(3, plan), TypeError, "surgery takes a model, not a int"),
        (lambda net, plan: extract_scales(3), TypeError, "extract_scales takes a model, not a int"),
        (
            lambda net, plan: search_model(search_model(net, plan), plan),
            ValueError,
            r"no linear operator 'stem', .* \(there is a SearchBlock; a block can be merged",
        ),
        (
            lambda net, plan: csla_model(net, plan.with_scales("ones"), {"head": {}}),
            ValueError,
            "there are kernels for 'head', which the plan does not hold",
        ),
        (lambda net, plan: search_model(net, plan, kernel="he"), ValueError, "kernel is 'authors' or 'paper'"),
        (
            lambda net, plan: search_model(net, plan, start=repopt.Scales({"head": {"conv3x3": 1.0}})),
            ValueError,
            "the scales name 'head', which the plan does not hold",
        ),
        (lambda net, plan: extract_scales(net), ValueError, "this Own holds no trained scales"),
        (lambda net, plan: repopt.merge(net), ValueError, "this Own holds no block to merge"),
        (lambda net, plan: repopt.merge(3), TypeError, "merge takes a model, not a int"),
    ],
)
def test_what_surgery_cannot_do_is_said(act, error, words):
    net = Own()
    with pytest.raises(error, match=words):
        act(net, repopt.plan(net, OWN_BRANCHES))
