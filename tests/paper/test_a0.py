"""A0's study: scales changed in ways that one can reckon with."""

import pytest
import torch

from made_up import line
from paper import TABLES
from paper.a0 import blended, floored
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


def lines_of(data, ways):
    return [
        line(data=data, way=way, model="repopt_vgg_a0", seed=seed, val_accuracy=value)
        for way, values in ways.items()
        for seed, value in enumerate(values)
    ]


def test_each_way_is_compared_with_repvgg_and_with_the_scales_as_searched():
    part = TABLES["a0"].part(
        lines_of("imagenette", {"RepVGG": (80, 82), "searched": (79, 80), "no frozen taps": (81, 84)})
    )
    assert "| searched | 2 | 79.50 ± 0.71 | -1.50 ± 1.12 |  |" in part
    assert "| no frozen taps | 2 | 82.50 ± 2.12 | +1.50 ± 1.80 | +3.00 ± 1.58 |" in part


def test_a_change_is_adopted_where_it_is_ahead_on_both_data_sets_alone():
    searched = {"searched": (79, 80)}
    found = lines_of("imagenette", {**searched, "no frozen taps": (83, 84), "clipped to 1": (72, 73)})
    once = TABLES["a0"].part([*found, *lines_of("cifar100", {**searched, "no frozen taps": (79, 82)})])
    twice = TABLES["a0"].part([*found, *lines_of("cifar100", {**searched, "no frozen taps": (83, 84)})])
    named = "the scales as searched"
    assert (
        f"imagenette: More than two standard errors ahead of {named}: no frozen taps. More than two standard errors "
        f"behind {named}: clipped to 1."
    ) in once
    assert f"cifar100: Not told apart from {named}: no frozen taps." in once
    assert once[-1].startswith("Ahead on both data sets: none. So none is adopted")
    assert twice[-1].startswith(
        "Ahead on both data sets: no frozen taps. Not compared on both with more than one seed: twice the learning rate"
    )
    assert "clipped to 1" in twice[-1]
    assert not any("both data sets" in line for line in TABLES["a0"].part(found))  # of one set nothing follows


def test_a_change_with_one_seed_is_named_as_not_compared():
    ways = {"searched": (79, 80), "no frozen taps": (79, 82)}
    one = TABLES["a0"].part(
        [
            *lines_of("imagenette", {**ways, "clipped to 1": (72, 73)}),
            *lines_of("cifar100", {**ways, "clipped to 1": (99,)}),
        ]
    )
    assert "clipped to 1" in one[-1].partition("Not compared on both")[2]
    assert "no frozen taps" not in one[-1].partition("Not compared on both")[2]


def test_each_method_has_its_best_learning_rate_too():
    ways = {"RepVGG": (80, 82), "RepVGG, twice the learning rate": (84, 86), "searched": (81, 83)}
    ways |= {"twice the learning rate": (86, 88), "half the learning rate": (99, 99)}  # which RepVGG was not tried at
    assert TABLES["a0"].verdict(lines_of("imagenette", ways)) == (
        "A0 by RepOpt against RepVGG: +1.00 ± 1.41 points on imagenette; each at its best learning rate of those that "
        "both were tried at, +2.00 ± 1.41 on imagenette."
    )
