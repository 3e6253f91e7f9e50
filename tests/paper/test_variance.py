"""Appendix B: the identity variance ratio at initialization."""

import pytest
import torch

from paper.variance import RESNET, identity_ratios, over_seeds
from repopt.models import VGGSpec

SPEC = VGGSpec(depths=(2, 2, 16), widths=(32, 32, 64))


@pytest.fixture(scope="module")
def ratios():
    images = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return identity_ratios(SPEC, images, seed=0)


def test_all_blocks_of_the_longest_stage_are_measured_but_the_first(ratios):
    assert list(ratios) == [RESNET, "search, all 1", "search, sqrt(2/l)"]
    assert all(list(by_block) == list(range(2, 17)) for by_block in ratios.values())


def test_in_a_resnet_every_addition_adds_a_variance_of_1_so_that_the_ratio_grows(ratios):
    """Roughly n / (n + 1); the ReLU after each addition takes some of it away."""
    found = ratios[RESNET]
    for block in (4, 8, 16):
        assert found[block] == pytest.approx((block - 1) / block, abs=0.2)
    assert found[2] < found[4] < found[8] < found[16] < 1


def test_in_a_search_model_with_all_scales_1_the_ratio_maintains(ratios):
    found = list(ratios["search, all 1"].values())
    assert max(found) - min(found) < 0.15


def test_scales_of_sqrt_2_over_l_make_the_ratio_grow_as_a_resnet_s(ratios):
    """Convolutions' variances are scaled by 2/l: with ratio r at scale 1, it is 1 / (1 + (1/r - 1) * 2/l)."""
    flat = sum(ratios["search, all 1"].values()) / 15
    for block, ratio in ratios["search, sqrt(2/l)"].items():
        assert ratio == pytest.approx(1 / (1 + (1 / flat - 1) * 2 / (block - 1)), abs=0.1)
    assert ratios["search, sqrt(2/l)"][2] < flat < ratios["search, sqrt(2/l)"][16]


def test_the_same_seed_gives_the_same_ratios_and_leaves_the_caller_s_draws_alone():
    images, small = torch.randn(4, 3, 16, 16), VGGSpec(depths=(1, 3), widths=(8, 8))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert identity_ratios(small, images, seed=1) == identity_ratios(small, images, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_means_and_deviations_are_over_seeds():
    drawn = [{"m": {2: value}} for value in (0.25, 0.75)]
    mean, deviation = over_seeds(drawn)["m"][2]
    assert (mean, deviation) == pytest.approx((0.5, 0.125**0.5))
    assert over_seeds(drawn[:1])["m"][2] == (0.25, 0.0)
