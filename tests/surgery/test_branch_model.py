"""Real parallel branches with norms, in the place of planned operators, and the plain network that they merge into."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.models.repvgg import RepVGGBlock
from repopt.plans.presets import PRESETS
from repopt.surgery.blocks import BranchBlock
from repopt.surgery.conversion import branch_model
from repopt.verification.cases import BRANCH_SETS
from settled import settle

NORMS = [True, False, "qarepvgg"]
REPVGG = [Conv(3), Conv(1), Identity()]


def random_input(operator, batch=4):
    return torch.randn(batch, operator.in_channels, *[7] * operator.dims, dtype=torch.float64)


def relative(value, expected):
    return ((value - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_before_and_after_merge(branch_set, norm):
    """Any operator, any branches: in eval mode the block is one operator, and its kernels' gradients are that one's."""
    case = BRANCH_SETS[branch_set]
    net = case.operator().double()
    plan = repopt.plan(net, {"^$": case.branches})
    real = settle(branch_model(net, plan, norm)).eval()
    merged = repopt.merge(real)
    assert type(merged) is type(net)
    assert (merged.bias is not None) is (bool(norm) or net.bias is not None)
    x = random_input(plan.blocks[""].operator)
    assert relative(merged(x), real(x)) <= 1e-10

    target = torch.randn_like(real(x))
    kernels = list(real.kernels.values())
    ours = torch.autograd.grad((real(x) * target).sum(), kernels)
    convolve = F.linear if isinstance(merged, nn.Linear) else merged._conv_forward
    plain = torch.autograd.grad((convolve(x, real.equivalent_kernel(), merged.bias) * target).sum(), kernels)
    for got, expected in zip(ours, plain, strict=True):
        assert relative(got, expected) <= 1e-10


@pytest.mark.parametrize("norm_after", [False, True])
@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (6, 2)])
def test_the_block_trains_as_a_repvgg_or_qarepvgg_block(channels, stride, norm_after):
    """Outputs, gradients and statistics, in train mode."""
    theirs = RepVGGBlock(4, channels, stride, norm_after=norm_after).double()
    operator = nn.Conv2d(4, channels, 3, stride, 1, bias=False).double()
    plan = repopt.plan(operator, "repvgg")
    ours = branch_model(operator, plan, "qarepvgg" if norm_after else True)
    kernels = {"conv3x3": theirs.rbr_dense.conv, "conv1x1": theirs.rbr_1x1 if norm_after else theirs.rbr_1x1.conv}
    with torch.no_grad():
        for branch, conv in kernels.items():
            ours.kernels[branch].copy_(conv.weight)
    pairs = [(ours.kernels[branch], conv.weight) for branch, conv in kernels.items()]
    norms = {ours.norms["conv3x3"]: theirs.rbr_dense.bn}
    norms |= {ours.norm_after: theirs.bn} if norm_after else {ours.norms["conv1x1"]: theirs.rbr_1x1.bn}
    if stride == 1 and not norm_after:
        norms[ours.norms["identity"]] = theirs.rbr_identity
    pairs += [(mine.weight, other.weight) for mine, other in norms.items()]
    assert len(pairs) == len([param for param in ours.parameters() if param.ndim > 1]) + len(norms)

    x = torch.randn(4, 4, 6, 6, dtype=torch.float64)
    y, expected = ours(x), theirs.linear_part(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    target = torch.randn_like(expected)
    (y * target).sum().backward()
    (expected * target).sum().backward()
    for mine, other in pairs:
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-10, atol=1e-10)
    for mine, other in norms.items():
        torch.testing.assert_close(mine.running_var, other.running_var, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_the_gradients_of_a_block_in_training_are_those_of_finite_differences(norm):
    operator = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect").double()
    real = branch_model(operator, repopt.plan(operator, "repvgg"), norm)
    names, params = zip(*real.named_parameters(), strict=True)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def outputs(x, *params):
        return torch.func.functional_call(real, dict(zip(names, params, strict=True)), x)

    assert torch.autograd.gradcheck(outputs, (x, *params))


class Own(nn.Module):
    """A network of one's own: depthwise, grouped, dilated, reflecting and unpadded convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.dilated = nn.Conv2d(8, 8, 3, padding=2, dilation=2, padding_mode="reflect")
        self.bare = nn.Conv2d(8, 8, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = self.bn(self.stem(x)).relu()
        for layer in (self.depthwise, self.grouped, self.dilated, self.bare):
            x = layer(x).relu()
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_trained_network_merges_into_its_plain_form(preset, norm):
    net = Own().double()
    plan = repopt.plan(net, preset)
    assert len(plan.operators) == 5
    real = branch_model(net, plan, norm)
    optimizer = torch.optim.SGD(repopt.decay_groups(real, 1e-4), lr=0.05, momentum=0.9)
    x, labels = torch.randn(16, 3, 16, 16, dtype=torch.float64), torch.randint(0, 5, (16,))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(real(x), labels))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    plain = repopt.merge(real.eval())
    assert relative(plain(x), real(x)) <= 1e-10
    assert {name: type(module) for name, module in plain.named_modules()} == {
        name: type(module) for name, module in net.named_modules()
    }
    torch.testing.assert_close(plain.bn.running_var, real.bn.running_var)
    plan.on(plain)  # the same operators again


def test_the_rest_of_the_network_is_taken_over():
    net = Own().to(memory_format=torch.channels_last).eval()
    net.grouped.weight.requires_grad_(False)
    seen = []
    net.bare.register_forward_hook(lambda module, inputs, output: seen.append(type(module)))
    before = copy.deepcopy(net.state_dict())
    real = branch_model(net, repopt.plan(net, "repvgg"))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert not any(module.training for module in real.modules())
    assert not any(param.requires_grad for param in real.grouped.parameters())
    assert real.bare.kernels["conv3x3"].is_contiguous(memory_format=torch.channels_last)
    assert real.bare.out_channels == 8
    plain = repopt.merge(real)
    assert not plain.training
    assert not plain.grouped.weight.requires_grad
    assert not plain.grouped.bias.requires_grad
    assert plain.bare.weight.is_contiguous(memory_format=torch.channels_last)
    plain(torch.randn(2, 3, 16, 16))
    assert seen == [nn.Conv2d]


def test_an_identity_trains_its_norm_alone_and_decays_it_as_repvgg_does():
    net = nn.Conv2d(4, 4, 3, padding=1)
    real = branch_model(net, repopt.plan(net, "repvgg"))
    assert set(real.kernels) == {"conv3x3", "conv1x1"}
    decayed, rest = repopt.decay_groups(real, 1e-4)
    assert {id(param) for param in decayed["params"]} == {
        id(param) for param in (*real.kernels.values(), real.norms["identity"].weight)
    }
    assert len(rest["params"]) == 1 + 2 + 3  # the operator's bias, two gammas, three betas


@pytest.mark.parametrize("trained", [True, False])
def test_what_an_identity_alone_merges_into_can_be_trained_where_the_operator_could(trained):
    net = nn.Conv2d(4, 4, 3, padding=1)
    net.weight.requires_grad_(trained)
    plain = repopt.merge(branch_model(net, repopt.plan(net, {"^$": [Identity()]})))
    assert (plain.weight.requires_grad, plain.bias.requires_grad) == (trained, True)


def test_kernels_are_drawn_as_for_a_search_model():
    net = nn.Conv2d(4, 4, 3, padding=1)
    plan = repopt.plan(net, "repvgg")
    draws = [
        make(net, plan, kernel="paper", generator=torch.Generator().manual_seed(0)).kernels
        for make in (branch_model, branch_model, repopt.search_model)
    ]
    for branch in ("conv3x3", "conv1x1"):
        assert torch.equal(draws[0][branch], draws[1][branch])
        assert torch.equal(draws[0][branch], draws[2][branch])


def test_inputs_may_have_no_batch_dimension_or_several():
    conv, fc = nn.Conv2d(4, 4, 3, padding=1).double(), nn.Linear(4, 4).double()
    image = settle(branch_model(conv, repopt.plan(conv, "repvgg"))).eval()
    x = torch.randn(4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(image(x), image(x[None])[0])
    tokens = branch_model(fc, repopt.plan(fc, {"^$": [Linear(), Identity()]}))
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(tokens(x), tokens(x.flatten(0, 1)).view_as(x))


def test_norms_that_tools_put_in_the_place_of_ours_are_merged():
    net = Own().double()
    real = settle(nn.SyncBatchNorm.convert_sync_batchnorm(branch_model(net, repopt.plan(net, "repvgg")))).eval()
    assert isinstance(real.stem.norms["conv3x3"], nn.SyncBatchNorm)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert relative(repopt.merge(real)(x), real(x)) <= 1e-10


def test_a_block_says_what_it_is():
    net = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    real = branch_model(net, repopt.plan(net, "repvgg"))
    assert isinstance(real, BranchBlock)
    assert "bias=False, branches=(conv3x3, conv1x1, identity)" in repr(real)
    with pytest.raises(ValueError, match="holds no trained scales"):
        repopt.extract_scales(real)
    with pytest.raises(ValueError, match="norm is True, False or 'qarepvgg', not 'batch'"):
        branch_model(net, repopt.plan(net, "repvgg"), "batch")


@pytest.mark.parametrize(("pattern", "parent"), [(r"linear\d$", "TransformerEncoderLayer"), ("out_proj", "Multihead")])
def test_norms_that_attention_would_not_call_are_refused(pattern, parent):
    """Torch reads these weights: in evaluation, or always. Without norms the block's weight is all there is."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    plan = repopt.plan(layer, {pattern: [Linear(), Linear()]})
    for norm in (True, "qarepvgg"):
        with pytest.raises(ValueError, match=rf"belongs to a {parent}.*, which may read its weight"):
            branch_model(layer, plan, norm)
    real, x = branch_model(layer, plan, norm=False).eval(), torch.randn(4, 5, 8, dtype=torch.float64)
    merged = repopt.merge(real)
    with torch.no_grad():
        assert relative(real(x), merged(x)) < 1e-12


@pytest.mark.parametrize(
    ("training", "lacks"), [(True, "the norms of its"), (False, "the shifts of its branches' norms")]
)
def test_reading_the_weight_of_a_block_is_warned_of(training, lacks):
    """As attention of one's own may do, whose norms would see no batch, or a tool that folds norms into `weight`."""
    net = nn.Sequential(nn.Linear(4, 4))
    real = branch_model(net, repopt.plan(net, {"0": [Linear(), Identity()]})).train(training)
    with pytest.warns(UserWarning, match=f"the weight of '0' is read, .* lacks {lacks}.*merge the model first"):
        F.linear(torch.ones(2, 4), real[0].weight)
