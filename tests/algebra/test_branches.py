import pytest
import torch
from torch import nn

from repopt import Conv, Identity, Linear
from repopt.algebra.csla import imagine
from repopt.algebra.operators import operator_of
from repopt.verification.cases import BRANCH_SETS


def block_of(module, *branches):
    return imagine(operator_of(module), branches, "op")


def only(block):
    (placement,) = block.branches.values()
    return placement


@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_a_view_is_writable_and_holds_the_kernel_entry_for_entry(branch_set):
    case = BRANCH_SETS[branch_set]
    block = imagine(operator_of(case.operator()), case.branches)
    for placement in block.branches.values():
        kernel = torch.arange(1.0, torch.Size(placement.kernel_shape).numel() + 1).view(placement.kernel_shape)
        weight = torch.zeros(block.operator.kernel_shape)
        placement.view(weight).add_(placement.fold(kernel))
        assert weight.sum() == kernel.sum()
        assert sorted(weight[weight != 0].tolist()) == kernel.flatten().tolist()


def test_the_identity_sits_on_the_channel_diagonal_of_the_centre():
    placement = only(block_of(nn.Conv2d(4, 4, 3, padding=1), Identity()))
    weight = torch.zeros(4, 4, 3, 3)
    placement.view(weight).add_(1)
    assert torch.equal(weight[:, :, 1, 1], torch.eye(4))
    assert weight.sum() == 4


def test_in_a_grouped_kernel_the_identity_of_output_o_is_column_o_mod_inputs_per_group():
    placement = only(block_of(nn.Conv1d(6, 6, 1, groups=2), Identity()))
    weight = torch.zeros(6, 3, 1)
    placement.view(weight).add_(1)
    assert [row.argmax().item() for row in weight[:, :, 0]] == [0, 1, 2, 0, 1, 2]


def test_finer_groups_sit_block_diagonally():
    placement = only(block_of(nn.Linear(4, 4), Identity()))
    assert placement.conv_shape == (4, 1)
    placement = only(block_of(nn.Conv1d(4, 8, 1), Conv(1, groups=2)))
    weight = torch.zeros(8, 4, 1)
    placement.view(weight).add_(1)
    assert torch.equal(weight[:, :, 0], torch.block_diag(torch.ones(4, 2), torch.ones(4, 2)))


def test_a_dilated_branch_takes_every_second_tap_around_the_centre():
    placement = only(block_of(nn.Conv1d(1, 1, 7, padding=3), Conv(3, dilation=2)))
    weight = torch.zeros(1, 1, 7)
    placement.view(weight).add_(1)
    assert weight.flatten().tolist() == [0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("module", "branches", "names"),
    [
        (nn.Conv1d(4, 4, 3, padding=1), [Conv(3), Conv(1), Identity()], ["conv3", "conv1", "identity"]),
        (nn.Conv2d(4, 4, 3, padding=1), [Conv(3), Conv((1, 3)), Conv(3)], ["conv3x3", "conv1x3", "conv3x3_2"]),
        (nn.Conv2d(4, 4, 5), [Conv(3, dilation=2), Conv((3, 1), dilation=(2, 1))], ["conv3x3d2", "conv3x1d2x1"]),
        (nn.Conv3d(8, 8, 3), [Conv(3), Conv(1, groups=8)], ["conv3x3x3", "conv1x1x1g8"]),
        (nn.Conv2d(8, 8, 3, groups=8), [Conv(3, groups=8)], ["conv3x3"]),
        (nn.Conv2d(4, 4, 1), [Conv(1), Conv(1), Conv(1)], ["conv1x1", "conv1x1_2", "conv1x1_3"]),
        (nn.Linear(4, 4), [Linear(), Identity()], ["linear", "identity"]),
    ],
)
def test_branches_are_named_by_taps_dilation_and_groups(module, branches, names):
    assert list(block_of(module, *branches).branches) == names


def test_an_identity_is_left_out_where_the_shape_changes_and_the_block_says_so():
    block = block_of(nn.Conv2d(4, 4, 3, stride=2, padding=1), Conv(3), Identity())
    assert list(block.branches) == ["conv3x3"]
    assert (list(block.branches), block.left_out) == (["conv3x3"], "stride 2x2")


@pytest.mark.parametrize(
    ("module", "branches", "words"),
    [
        (nn.Conv2d(4, 4, 3), [Conv(5)], r"spans 5x5 taps, which is larger than the 3x3 kernel of 'op'"),
        (nn.Conv2d(4, 4, 3), [Conv(3, dilation=2)], r"spans 5x5 taps, which is larger"),
        (nn.Conv2d(4, 4, 3), [Conv(2)], r"spans 2x2 taps and cannot be centred in the 3x3 kernel of 'op'"),
        (nn.Conv2d(4, 4, 4, padding="same"), [Identity()], r"Identity\(\) spans 1x1 taps and cannot be centred"),
        (
            nn.Conv2d(4, 4, 3, stride=2),
            [Identity()],
            r"'op' is left without any branch, since its identity is left out",
        ),
        (nn.Conv2d(4, 4, 3), [], r"'op' is left without any branch, since none was given"),
        (nn.Conv2d(4, 4, 3), [Linear()], r"Linear\(\) cannot sit in 'op', which is a 2-d convolution"),
        (nn.Linear(4, 4), [Conv(1)], r"cannot sit in 'op', which is fully connected: use Linear"),
        (nn.Conv2d(4, 4, 3), [Conv((3, 3, 3))], r"its kernel size must be one positive number or 2 of them"),
        (nn.Conv2d(4, 4, 3), [Conv(3, dilation=0)], r"its dilation must be one positive number"),
        (nn.Conv2d(4, 4, 3, groups=2), [Conv(3, groups=1)], r"its groups must be a multiple of the operator's 2"),
        (nn.Conv2d(4, 4, 3), [Conv(3, groups=3)], r"divides 4 input and 4 output channels"),
        (nn.Conv2d(4, 4, 3), ["conv3x3"], r"conv3x3 cannot sit in 'op'"),
    ],
)
def test_a_branch_that_does_not_fit_is_refused_in_a_sentence(module, branches, words):
    with pytest.raises(ValueError, match=words):
        block_of(module, *branches)
