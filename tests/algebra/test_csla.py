import math

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.algebra.csla import equivalent_kernel, imagine, initial_kernels, least_norm_split
from repopt.algebra.operators import operator_of
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales


def repvgg(channels=4, **conv):
    net = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **conv)
    return net, repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]})


def test_the_equivalent_kernel_is_equation_4():
    net, bare = repvgg()
    s, t = torch.randn(4), torch.randn(4)
    plan = bare.with_scales({"": {"conv3x3": s, "conv1x1": t}})
    kernels = plan.init_(identity="one")[""]
    expected = s.view(-1, 1, 1, 1) * kernels["conv3x3"]
    expected[:, :, 1, 1] += t.view(-1, 1) * kernels["conv1x1"][:, :, 0, 0] + torch.eye(4)
    torch.testing.assert_close(net.weight.detach(), expected)


@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_the_least_norm_split_is_a_split_and_no_other_is_smaller(branch_set):
    case = BRANCH_SETS[branch_set]
    net = case.operator().double()
    bare = repopt.plan(net, {"^$": case.branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    block, constants = plan.blocks[""], plan.constants("")
    other = plan.init_()[""]
    split = least_norm_split(block, constants, net.weight)
    torch.testing.assert_close(equivalent_kernel(block, constants, split), net.weight.detach())
    assert all(split[branch].shape == other[branch].shape for branch in other)

    def norm(kernels):
        return sum(kernel.square().sum() for kernel in kernels.values())

    assert norm(split) < norm(other) or len(block.branches) == 1


def test_a_weight_that_no_branch_reaches_has_no_split():
    net = nn.Conv2d(2, 2, 3, padding=1)
    block = imagine(operator_of(net), [Conv(3, groups=2), Conv(1)], "stem")
    constants = {"conv3x3g2": torch.ones(()), "conv1x1": torch.ones(())}
    with pytest.raises(ValueError, match="the weight of 'stem' is not zero at entries that no branch"):
        least_norm_split(block, constants, net.weight, "stem")


def test_a_branch_whose_scale_is_zero_gets_a_zero_kernel():
    net = nn.Linear(3, 3)
    block = imagine(operator_of(net), [Linear(), Linear()])
    split = least_norm_split(block, {"linear": torch.zeros(3), "linear_2": torch.full((3,), 2.0)}, net.weight)
    assert not split["linear"].any()
    torch.testing.assert_close(split["linear_2"], net.weight.detach() / 2)


@pytest.mark.parametrize(
    ("kernel", "branch", "std"),
    [
        ("authors", "conv3x3", 1 / math.sqrt(3 * 9 * 64)),
        ("authors", "conv1x1", 1 / math.sqrt(3 * 64)),
        ("paper", "conv3x3", math.sqrt(2 / (9 * 64))),
        ("paper", "conv1x1", math.sqrt(2 / 64)),
    ],
)
def test_each_kernel_is_drawn_on_its_own_fan_in(kernel, branch, std):
    _, bare = repvgg(64)
    drawn = bare.with_scales("ones").init_(kernel=kernel)[""][branch]
    assert drawn.std().item() == pytest.approx(std, rel=0.05)


def test_authors_means_torchs_own_default():
    net = nn.Conv2d(8, 8, 3)
    kernels = initial_kernels(
        imagine(operator_of(net), [Conv(3)]),
        net.weight,
        kernel="authors",
        identity={},
        generator=torch.Generator().manual_seed(3),
    )
    torch.manual_seed(3)
    assert torch.equal(kernels["conv3x3"], nn.Conv2d(8, 8, 3).weight.detach())


@pytest.mark.parametrize(("identity", "start"), [("searched", 0.25), ("one", 1.0)])
def test_the_identity_starts_as_searched_or_as_one(identity, start):
    _, bare = repvgg()
    plan = bare.with_scales({"": {"conv3x3": 0.0, "conv1x1": 0.0, "identity": torch.full((4,), 0.25)}})
    kernels = plan.init_(identity=identity)[""]
    assert kernels["identity"].shape == (4,)
    assert (kernels["identity"] == start).all()


def test_a_searched_identity_does_not_change_the_constant_of_its_branch():
    _, bare = repvgg()
    plan = bare.with_scales({"": {"conv3x3": 1.0, "conv1x1": 1.0, "identity": torch.full((4,), 0.25)}})
    assert plan.constants("")["identity"].item() == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_generator_gives_the_same_weights_on_every_memory_format(dtype):
    weights = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        net, bare = repvgg(8)
        net.to(dtype=dtype, memory_format=memory_format)
        bare.with_scales("ones").init_(generator=torch.Generator().manual_seed(1))
        assert net.weight.is_contiguous(memory_format=memory_format)
        weights.append(net.weight.detach())
    assert torch.equal(*weights)


def test_the_bias_is_left_alone():
    net = nn.Linear(3, 3)
    before = net.bias.detach().clone()
    repopt.plan(net, {"^$": [Linear(), Identity()]}, scales="ones").init_()
    assert torch.equal(net.bias, before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": "mine"}, "'authors' or 'paper', not 'mine'"),
        ({"identity": "mine"}, "'searched' or 'one', not 'mine'"),
    ],
)
def test_an_unknown_convention_is_refused(options, words):
    _, bare = repvgg()
    with pytest.raises(ValueError, match=words):
        bare.with_scales("ones").init_(**options)
