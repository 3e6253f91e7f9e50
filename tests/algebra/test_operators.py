import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from repopt.algebra.operators import check_weight, is_linear_operator, operator_of


def test_a_convolution_is_described_by_its_geometry():
    operator = operator_of(nn.Conv2d(8, 12, (3, 5), stride=(1, 2), padding=(1, 2), dilation=2, groups=4))
    assert operator.kernel_shape == (12, 2, 3, 5)
    assert operator.padding == ((1, 1), (2, 2))
    assert operator.dims == 2


def test_a_linear_layer_is_a_convolution_over_no_dimensions():
    operator = operator_of(nn.Linear(8, 12))
    assert operator.kernel_shape == (12, 8)
    assert operator.dims == 0


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (nn.Conv2d(8, 8, 3, padding=1), None),
        (nn.Conv2d(8, 8, 3, padding=2, dilation=2), None),
        (nn.Conv2d(8, 8, 4, padding="same"), None),
        (nn.Linear(8, 8), None),
        (nn.Conv2d(8, 9, 3, padding=1), "8 -> 9 channels"),
        (nn.Conv2d(8, 8, 3, stride=2, padding=1), "stride 2x2"),
        (nn.Conv2d(8, 8, 3), "padding 0x0"),
        (nn.Conv2d(8, 8, 3, padding="valid"), "padding 0x0"),
        (nn.Conv1d(8, 8, 3, padding=2), "padding 2"),
        (nn.Linear(8, 9), "8 -> 9 channels"),
    ],
)
def test_what_changes_the_shape_is_told(module, change):
    assert operator_of(module).shape_change == change


def test_same_padding_puts_the_odd_one_behind_as_torch_does():
    conv = nn.Conv2d(2, 2, 4, padding="same", padding_mode="reflect")
    (before, after), _ = operator_of(conv).padding
    assert [before, after] == conv._reversed_padding_repeated_twice[:2]


def test_transposed_convolutions_are_not_among_the_linear_operators():
    assert is_linear_operator(nn.Conv3d(1, 1, 1))
    assert not is_linear_operator(nn.ConvTranspose2d(1, 1, 1))


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (nn.Linear(2, 2, dtype=torch.complex64), TypeError, "'fc' is torch.complex64"),
        (parametrizations.weight_norm(nn.Linear(2, 2)), TypeError, "'fc' is computed from other parameters"),
    ],
)
def test_a_weight_that_cannot_be_planned_is_refused(module, error, words):
    with pytest.raises(error, match=words):
        check_weight(module, "fc")


def test_an_integer_weight_is_refused():
    linear = nn.Linear(2, 2)
    linear.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TypeError, match=r"'fc' is torch\.int8"):
        check_weight(linear, "fc")


def test_a_lazy_module_is_refused_until_it_has_a_shape():
    with pytest.raises(ValueError, match="'fc' has no shape yet"):
        check_weight(nn.LazyLinear(2), "fc")
