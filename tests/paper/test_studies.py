"""A0's study: scales changed in ways that one can reckon with."""

import pytest
import torch

from paper.studies import blended, floored
from repopt.plans.scales import Scales

SEARCHED = Scales({"a": {"conv3x3": torch.tensor([-0.1, 0.0, 1.3, 2.6]), "identity": torch.full((4,), 0.5)}})


def test_no_scale_is_smaller_than_its_share_of_the_mean_and_signs_stay():
    found = floored(SEARCHED, 0.3)["a"]
    assert found["conv3x3"].tolist() == pytest.approx([-0.3, 0.3, 1.3, 2.6])  # the mean of all sizes is 1
    assert torch.equal(found["identity"], SEARCHED["a"]["identity"])


def test_a_blend_lies_between_and_keeps_the_identity():
    other = Scales({"a": {"conv3x3": torch.ones(4)}})
    assert blended(SEARCHED, other, 0.5)["a"]["conv3x3"].tolist() == pytest.approx([0.45, 0.5, 1.15, 1.8])
    assert torch.equal(blended(SEARCHED, other, 0.0)["a"]["conv3x3"], SEARCHED["a"]["conv3x3"])
    assert torch.equal(blended(SEARCHED, other, 0.5)["a"]["identity"], SEARCHED["a"]["identity"])
