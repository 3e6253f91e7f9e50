import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import other_nets
import repopt
from repopt import Conv, Identity, Linear, Scales
from repopt.verification.cases import mixed_sign_scales
from repopt.verification.equality import BlockDifference, Report


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)


def net_and_plan():
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(54, 54),
    )
    bare = repopt.plan(net, {"0": [Conv(3), Conv(1), Identity()], "5": [Linear(), Identity()]})
    return net, bare.with_scales(mixed_sign_scales(bare))


def test_each_operator_is_trained_alone_and_the_net_is_left_as_it_was():
    net, plan = net_and_plan()
    before = copy.deepcopy(net.state_dict())
    report = repopt.verify(net, plan, sgd)
    assert [difference.operator for difference in report.differences] == ["0", "5"]
    assert report.worst <= 1e-12
    assert report.exact
    assert report.steps == 50
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    assert report.passed
    assert str(report).startswith("SGD, grad route, exact, 50 steps: passed, ")
    assert len(str(report).splitlines()) == 3  # what was trained, and a line for each block
    assert len(repr(report)) < 120


@pytest.mark.parametrize("many", [False, True])
def test_given_inputs_train_the_whole_model_with_its_norms_and_dropout(many):
    net, plan = net_and_plan()
    x = torch.randn(8, 3, 6, 6)
    report = repopt.verify(net, plan, sgd, inputs=[x, -x] if many else x)
    assert report.passed
    assert report.worst <= 1e-11
    assert all(difference.moved > 1e-4 for difference in report.differences)


def test_what_did_not_move_shows_nothing():
    net, plan = net_and_plan()
    report = repopt.verify(net, plan, lambda params: torch.optim.SGD(params, lr=0.0), steps=3)
    assert report.worst <= 1e-12
    assert not report.passed
    assert str(report).count("(did not move)") == 2
    assert "not passed" in repr(report)
    assert "2 operators did not move" in repr(report)


def test_rounding_may_add_up_over_the_operators_of_a_model():
    """ResNet-18 with AdamW reads 3e-11 after 20 steps; a multiplier that is off by 1e-6 reads far more."""
    blocks = [
        BlockDifference(operator=str(at), branches="conv3x3", outputs=3e-11, kernels=1e-12, moved=0.1)
        for at in range(16)
    ]
    setting = {"rule": "AdamW", "route": "branch", "exact": True, "steps": 20}
    assert Report(**setting, differences=tuple(blocks), depth=16).passed
    assert not Report(**setting, differences=tuple(blocks[:1])).passed
    assert not Report(**setting, differences=(*blocks, replace(blocks[0], moved=0.0)), depth=17).passed
    assert not Report(**setting, differences=(*blocks, replace(blocks[0], kernels=1e-6)), depth=17).passed


def test_another_rule_for_the_real_block_shows_as_a_difference():
    net, plan = net_and_plan()
    report = repopt.verify(net, plan, sgd, reference=lambda params: torch.optim.SGD(params, lr=0.01), steps=20)
    assert report.worst > 1e-2
    assert not report.passed


def test_an_inexact_route_is_reported_as_such():
    net, plan = net_and_plan()
    report = repopt.verify(net, plan, torch.optim.AdamW, steps=10, route="grad", allow_inexact=True)
    assert not report.exact
    assert report.worst > 1e-3
    assert "inexact" in str(report)


def authors_plan(path, worst_only=True):
    """Blocks of the released scales' channel counts; of each stage, the one with the most negative scales."""
    scales = Scales.load(path)
    picked = {}
    channels = 3
    for name, branches in scales.items():
        width = branches["conv3x3"].numel()
        stage = name.split(".")[0]
        negatives = sum(int((scale < 0).sum()) for scale in branches.values())
        if not worst_only or negatives >= picked.get(stage, (-1,))[0]:
            picked[stage if worst_only else name] = (negatives, name, channels, "identity" not in branches)
        channels = width
    net = nn.ModuleDict()
    chosen = {}
    for _, name, inputs, strided in picked.values():
        key = name.replace(".", "_")
        width = scales[name]["conv3x3"].numel()
        net[key] = nn.Conv2d(inputs, width, 3, 2 if strided else 1, 1, bias=False)
        chosen[key] = scales[name]
    return net, repopt.plan(net, {".": [Conv(3), Conv(1), Identity()]}, chosen)


@pytest.mark.parametrize(
    "file", ["RepOpt-VGG-B1-scales.pth", pytest.param("RepOpt-VGG-L1-scales.pth", marks=pytest.mark.slow)]
)
def test_the_released_scales_keep_the_equality_negatives_included(authors_scales, file):
    net, plan = authors_plan(authors_scales / file)
    assert any((scale < 0).any() for its in plan.scales.values() for scale in its.values())
    for name, module in list(net.items()):
        if module.weight.numel() > 1_000_000:  # the wide ones are in the slow test
            del net[name]
    small = repopt.plan(
        net, {".": [Conv(3), Conv(1), Identity()]}, {name: plan.scales[name] for name in plan.operators if name in net}
    )
    assert repopt.verify(net, small, sgd).worst <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("file", ["RepOpt-VGG-B1-scales.pth", "RepOpt-VGG-L1-scales.pth"])
def test_every_block_of_the_released_scales_keeps_the_equality(authors_scales, file):
    net, plan = authors_plan(authors_scales / file, worst_only=False)
    assert repopt.verify(net, plan, sgd).worst <= 1e-12


def test_scales_as_spread_and_as_negative_as_the_released_ones_keep_the_equality():
    """The released scales span four decades and hold negatives; these do too, and need no file."""
    net = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    spread = torch.logspace(-3, 0.5, 64) * torch.where(torch.arange(64) % 7 == 0, -1.0, 1.0)
    scales = {"": {"conv3x3": spread, "conv1x1": spread.flip(0), "identity": torch.linspace(-1, 2, 64)}}
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, scales)
    assert repopt.verify(net, plan, sgd).worst <= 1e-12


def test_a_diverging_reference_is_told_from_a_broken_equality():
    net, plan = net_and_plan()
    with pytest.raises(RuntimeError, match=r"no longer finite at step \d+: use a smaller lr"):
        repopt.verify(net, plan, lambda params: torch.optim.SGD(params, lr=1e200))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "at least 1, not 0"),
        ({"inputs": []}, "inputs holds no batch"),
        (
            {"inputs": [(torch.ones(9), torch.ones(9))]},
            "not tuple: leave them out to check each operator",
        ),
    ],
)
def test_bad_arguments_are_refused(options, words):
    net, plan = net_and_plan()
    with pytest.raises((ValueError, TypeError), match=words):
        repopt.verify(net, plan, sgd, **options)


def test_a_model_whose_output_is_not_one_tensor_is_refused():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(x), x

    net = Pair()
    plan = repopt.plan(net, {"fc": [Linear()]}, scales="ones")
    with pytest.raises(TypeError, match="one tensor, not tuple"):
        repopt.verify(net, plan, sgd, inputs=torch.ones(1, 2))


def test_a_model_that_fails_without_a_word_is_said_to_fail_by_the_kind_of_error():
    class Silent(nn.Module):
        def forward(self, x):
            raise AssertionError

    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), Silent())
    plan = repopt.plan(net, {"0": [Conv(3), Identity()]}, scales="depth")
    with pytest.raises(RuntimeError, match=r"inputs of shape \(1, 4, 8, 8\): AssertionError$"):
        repopt.verify(net, plan, sgd, inputs=torch.zeros(1, 4, 8, 8))


def test_training_that_is_not_finite_is_no_equality():
    net, plan = net_and_plan()
    report = repopt.verify(net, plan, lambda params: torch.optim.SGD(params, lr=float("nan")), reference=sgd, steps=3)
    assert report.worst == float("inf")


def test_a_frozen_operator_is_verified_as_if_it_were_trained():
    net, plan = net_and_plan()
    net.requires_grad_(False)
    assert repopt.verify(net, plan, sgd, steps=3).worst <= 1e-12


def test_inputs_may_be_numbers_of_tokens():
    net = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 6))
    plan = repopt.plan(net, {"1": [Linear(), Identity()]}, scales="ones")
    assert repopt.verify(net, plan, sgd, inputs=torch.randint(10, (4, 3)), steps=5).worst <= 1e-12


def test_a_model_may_change_its_inputs_in_place():
    net, images = other_nets.InPlace().double(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    before = images.clone()
    report = repopt.verify(net, repopt.plan(net, "repvgg", "depth"), sgd, steps=3, inputs=[images])
    assert report.passed
    assert torch.equal(images, before)


def test_a_closed_form_asks_for_a_reference():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match=r"repopt\.optim\.AdamW cannot train the real block: give the stock optimizer"):
        repopt.verify(net, plan, lambda params, plan: repopt.optim.AdamW(params, plan))


def test_a_factory_may_call_the_plan_as_it_likes():
    net, plan = net_and_plan()
    report = repopt.verify(net, plan, lambda params, p: repopt.optim.AdamW(params, p), 3, reference=torch.optim.AdamW)
    assert report.passed


def test_a_factory_that_returns_no_optimizer_is_refused():
    net, plan = net_and_plan()
    with pytest.raises(TypeError, match="must return an optimizer, not a NoneType"):
        repopt.verify(net, plan, lambda params: None)


def test_a_factory_that_closes_over_the_plan_is_told_to_take_it():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match="with a factory that takes the plan"):
        repopt.verify(net, plan, lambda params: repopt.optim.AdamW(params, plan), reference=torch.optim.AdamW)


def test_an_optimizer_in_place_of_a_factory_is_refused():
    net, plan = net_and_plan()
    with pytest.raises(TypeError, match="must make an optimizer from parameters"):
        repopt.verify(net, plan, sgd(net.parameters()))


def test_the_net_given_is_the_one_that_is_looked_at():
    _, plan = net_and_plan()
    with pytest.raises(ValueError, match="no linear operator '0'"):
        repopt.verify(nn.Linear(1, 1), plan, sgd)


def test_weights_without_values_are_called_by_their_name():
    net, plan = net_and_plan()
    with pytest.raises(ValueError, match="the weight of '0' is on the meta device"):
        repopt.verify(net.to("meta"), plan, sgd)
