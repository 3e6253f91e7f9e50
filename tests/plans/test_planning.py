import copy

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear, Scales

REPVGG = [Conv(3), Conv(1), Identity()]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.blocks = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2)])
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x).relu()
        return self.fc(x.mean((2, 3)))


class DeclaringNet(Net):
    def repopt_branches(self):
        return {r"^blocks\.": REPVGG}


def test_the_first_matching_pattern_wins():
    plan = repopt.plan(Net(), {r"blocks\.1$": [Conv(3)], r"blocks\.\d$": REPVGG, "fc": [Linear()]})
    assert plan.operators == ("blocks.0", "blocks.1", "fc")
    assert list(plan.blocks["blocks.0"].branches) == ["conv3x3", "conv1x1", "identity"]
    assert list(plan.blocks["blocks.1"].branches) == ["conv3x3"]


def test_a_model_may_declare_its_branches():
    assert repopt.plan(DeclaringNet()).operators == ("blocks.0", "blocks.1")
    assert repopt.plan(nn.DataParallel(DeclaringNet())).operators == ("blocks.0", "blocks.1")


def test_operators_are_found_behind_wrappers_put_on_before_or_after():
    net = Net()
    for model in (nn.DataParallel(net), torch.compile(net)):
        plan = repopt.plan(model, {"^stem$": REPVGG}, scales="ones")
        assert plan.modules()["stem"] is net.stem


@pytest.mark.parametrize("form", ["scales", "dict", "path", "string"])
def test_scales_come_in_many_forms(form, tmp_path):
    values = {"stem": {"conv3x3": torch.arange(8.0), "conv1x1": 2.0}}
    Scales(values).save(tmp_path / "net.safetensors")
    given = {
        "scales": Scales(values),
        "dict": values,
        "path": tmp_path / "net.safetensors",
        "string": str(tmp_path / "net.safetensors"),
    }[form]
    plan = repopt.plan(Net(), {"stem": REPVGG}, given)
    assert torch.equal(plan.constants("stem")["conv3x3"], torch.arange(8.0))


def test_scales_written_under_a_wrapper_fit_the_plain_model():
    plan = repopt.plan(Net(), {"stem": [Conv(3)]}, {"module._orig_mod.stem": {"conv3x3": 2.0}})
    assert plan.constants("stem")["conv3x3"].item() == 2


def test_a_plan_moves_to_a_copy():
    net = Net()
    plan = repopt.plan(net, {"stem": REPVGG}, scales="ones")
    twin = copy.deepcopy(net)
    before = net.stem.weight.detach().clone()
    plan.on(twin).init_()
    assert torch.equal(net.stem.weight, before)
    assert not torch.equal(twin.stem.weight, before)


def test_a_plan_does_not_move_to_another_architecture():
    plan = repopt.plan(Net(), {"stem": REPVGG}, scales="ones")
    other = Net()
    other.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
    with pytest.raises(ValueError, match="'stem' has another shape"):
        plan.on(other)
    with pytest.raises(ValueError, match="no linear operator 'stem'"):
        plan.on(nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["repopt_vgg_b1", "repopt_vgg_l2"])
def test_the_printed_plan_of_a_vgg_fits_a_terminal_of_80_columns(name):
    with torch.device("meta"):
        plan = repopt.plan(repopt.create_model(name), scales=name)
    assert max(map(len, str(plan).splitlines())) <= 80


def test_printing_shows_operators_branches_multipliers_and_bytes():
    net = Net()
    table = str(repopt.plan(net, {"stem": REPVGG, r"blocks\.0": REPVGG}, scales="ones"))
    stem, block = table.splitlines()[2:4]
    assert stem.split("  ")[0] == "stem"
    assert "conv3x3, conv1x1" in stem
    assert stem.split()[-3:] == ["1", "1.11", "2"]
    assert "conv3x3, conv1x1, identity" in block
    assert block.split()[-3:] == ["1", "1.12", "3"]
    assert table.splitlines()[-2:] == [
        "2 operators; min, mean and max of their multipliers, 580 bytes in float32",
        "no identity: stem (3 -> 8 channels)",
    ]
    assert "no scales" in str(repopt.plan(net, {"stem": REPVGG}))


@pytest.mark.parametrize(
    ("branches", "error", "words"),
    [
        ({"nothing": REPVGG}, ValueError, r"the pattern 'nothing' matches no module; .* 'stem', 'blocks\.0'"),
        ({"blocks": REPVGG}, TypeError, r"'blocks' matches 'blocks', a ModuleList, which is not a linear operator"),
        ({}, ValueError, "the plan is empty"),
        (None, ValueError, "Net does not declare its branches"),
        ({"stem": [Conv(5)]}, ValueError, "larger than the 3x3 kernel of 'stem'"),
    ],
)
def test_a_plan_that_fits_nothing_is_refused(branches, error, words):
    with pytest.raises(error, match=words):
        repopt.plan(Net(), branches)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ({"stem": {"conv3x3": torch.ones(7), "conv1x1": 1.0}}, "'conv3x3' of 'stem' has 7 entries: .* the 8 output"),
        ({"stem": {"conv3x3": 1.0}}, "the scales lack branch 'conv1x1' of operator 'stem'"),
        ({}, "the scales lack branch 'conv3x3' of operator 'stem'"),
        ({"stem": {"conv3x3": 1.0, "conv1x1": 1.0}, "stem2": {}}, "name 'stem2', which the plan does not hold"),
        ({"stem": {"conv3x3": 1.0, "conv1x1": 1.0, "identity": 1.0}}, "branch 'identity' of 'stem', whose branches"),
        ({"stem": {"conv3x3": float("nan"), "conv1x1": 1.0}}, r"'stem\.conv3x3' holds 1 NaN"),
        ("ghost", "'ghost' is neither 'ones', 'depth'"),
        ("learn", r"in code, train repopt\.search_model\(model, plan\) and repopt\.freeze it"),
    ],
)
def test_scales_that_do_not_fit_are_refused(scales, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        repopt.plan(Net(), {"stem": REPVGG}, scales)


def test_one_operator_is_one_in_words_too():
    plan = repopt.plan(nn.Sequential(nn.Conv2d(3, 4, 3)), "repvgg", scales="ones")
    assert repr(plan) == "Plan(1 operator of a Sequential, scales=Scales(1 operator, 8 numbers))"
    assert "\n1 operator; min" in str(plan)


def test_many_unknown_operators_are_counted():
    scales = {f"conv{index}": {"conv3x3": 1.0} for index in range(9)}
    with pytest.raises(ValueError, match=r"'conv4' and 4 more, which the plan does not hold"):
        repopt.plan(Net(), {"stem": REPVGG}, scales)


def test_one_parameter_under_two_planned_names_is_refused():
    net = Net()
    net.blocks[1].weight = net.blocks[0].weight
    with pytest.raises(ValueError, match=r"'blocks\.0' and 'blocks\.1' share one weight"):
        repopt.plan(net, {r"blocks\.\d": REPVGG})
    twice = nn.Sequential(net.fc, nn.ReLU(), net.fc)
    with pytest.raises(ValueError, match="'0' and '2' share one weight"):
        repopt.plan(twice, {"0|2": [Linear()]})
    assert repopt.plan(twice, {"0": [Linear()]}).operators == ("0",)


def test_a_plan_without_scales_says_so_when_they_are_needed():
    plan = repopt.plan(Net(), {"stem": REPVGG})
    for use in (plan.init_, lambda: plan.multiplier("stem"), lambda: plan.constants("stem")):
        with pytest.raises(ValueError, match=r'this plan has no scales yet: .*plan\.with_scales\("depth"\)'):
            use()
    plan.with_scales("depth").init_()


def test_weights_without_values_are_not_drawn():
    with torch.device("meta"):
        net = Net()
    nn.init.zeros_(net.stem.to_empty(device="cpu").weight)
    plan = repopt.plan(net, "repvgg", scales="ones")
    for draw in (
        plan.init_,
        lambda: repopt.dirac_init_(net, plan),
        lambda: repopt.reparameterize(net, torch.optim.SGD(net.parameters()), init=True),
    ):
        with pytest.raises(ValueError, match=r"the weight of 'blocks\.0' is on the meta device and has no values"):
            draw()
    assert not net.stem.weight.any()


def test_an_unknown_operator_is_named():
    with pytest.raises(ValueError, match="the plan has no operator 'fc'; it has 'stem'"):
        repopt.plan(Net(), {"stem": REPVGG}, scales="ones").multiplier("fc")


def test_scales_do_not_change_with_the_tensor_they_were_made_from():
    shared = torch.full((8,), 2.0)
    plan = repopt.plan(Net(), {"stem": REPVGG}, {"stem": {"conv3x3": shared, "conv1x1": shared}})
    shared.mul_(10)
    assert plan.constants("stem")["conv3x3"].max() == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model", {"stem": REPVGG}), "plan takes a model, not a str"),
        ((Net(), [REPVGG]), "branches must be a dictionary"),
        ((Net(), {"stem": Conv(3)}), "branches must be a dictionary"),
        ((Net(), {"stem": REPVGG}, 0.5), "scales must be a name, a path, a Scales or"),
        ((Net(), {"stem": REPVGG}, {"stem": 0.5}), "the scales of 'stem' must be a dictionary by branch, not 0.5"),
        ((Net(), {"stem": REPVGG}, {"stem": {"conv3x3": "big"}}), "the scale 'stem.conv3x3' is a str"),
        ((Net(), {"(": REPVGG}), r"the pattern '\(' is not a regular expression"),
        ((Net(), {"stem": [Conv(3.0)]}), "its kernel size must be one positive number"),
        ((Net(), {"stem": [Conv(1, groups=1.0)]}), "its groups must be a multiple"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        repopt.plan(*arguments)


def test_plan_and_model_are_not_mistaken_for_each_other():
    net = Net()
    plan = repopt.plan(net, {"stem": REPVGG}, scales="ones")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="not a Net"):
        repopt.attach(optimizer, net)
    with pytest.raises(TypeError, match="not a Net"):
        repopt.clip_grad_norm_(net, 1.0)
    with pytest.raises(TypeError, match="not a Net"):
        repopt.csla_model(net, net)
    with pytest.raises(TypeError, match="a torch optimizer first and the plan second"):
        repopt.attach(plan, plan)
