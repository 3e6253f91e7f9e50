import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

import repopt
from repopt import Conv, Identity, Linear
from repopt.plans.presets import PRESETS


def branches_of(module, preset):
    return list(repopt.plan(module, preset).blocks[""].branches)


@pytest.mark.parametrize(
    ("module", "repvgg", "acnet"),
    [
        (nn.Conv1d(4, 4, 3, padding=1), ["conv3", "conv1", "identity"], ["conv3", "conv1"]),
        (nn.Conv2d(4, 4, 3, padding=1), ["conv3x3", "conv1x1", "identity"], ["conv3x3", "conv1x3", "conv3x1"]),
        (nn.Conv2d(4, 8, 3, 2), ["conv3x3", "conv1x1"], ["conv3x3", "conv1x3", "conv3x1"]),
        (nn.Conv2d(4, 8, (5, 7)), ["conv5x7", "conv1x1"], ["conv5x7", "conv1x7", "conv5x1"]),
        (nn.Conv2d(4, 4, 3, padding=2, dilation=2), ["conv3x3", "conv1x1", "identity"], None),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), ["conv3x3", "conv1x1", "identity"], None),
        (nn.Conv2d(4, 4, 7, padding=3, groups=4), ["conv7x7", "identity"], ["conv7x7", "conv1x7", "conv7x1"]),
        (nn.Conv2d(4, 8, 3, padding=1, groups=4), ["conv3x3"], None),
        (nn.Conv2d(1, 1, 3, padding=1), ["conv3x3", "conv1x1", "identity"], None),  # one channel is not depthwise
        (nn.Conv3d(2, 2, 3), ["conv3x3x3", "conv1x1x1"], ["conv3x3x3", "conv1x3x3", "conv3x1x3", "conv3x3x1"]),
    ],
    ids=str,
)
def test_what_a_preset_plans(module, repvgg, acnet):
    assert branches_of(module, "repvgg") == repvgg
    assert acnet is None or branches_of(module, "acnet") == acnet


class Standardized(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


def odd_net():
    net = nn.ModuleDict(
        {name: nn.Conv2d(4, 4, 3, padding=1) for name in ("plain", "tied", "tied2", "pruned", "normed", "biased")}
    )
    net["even"] = nn.Conv2d(4, 4, 4, 4)
    net["flat"] = nn.Conv2d(4, 4, (1, 7))
    net["up"] = nn.ConvTranspose2d(4, 4, 3)
    net["own"] = Standardized(4, 4, 3)
    net["lazy"] = nn.LazyConv2d(4, 3)
    net["point"] = nn.Conv2d(4, 4, 1)
    net["fc"] = nn.Linear(4, 4)
    net["tied2"].weight = net["tied"].weight
    prune.identity(net["pruned"], "weight")
    weight_norm(net["normed"])
    register_parametrization(net["biased"], "bias", nn.Tanh())
    net["alias"] = net["plain"]
    return net


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("preset", PRESETS)
def test_what_cannot_be_planned_is_left_out_and_named_with_the_reason(preset):
    plan = repopt.plan(odd_net(), preset, scales="depth")
    assert plan.operators == ("plain",)
    expected = {
        "tied": "shares its weight with 'tied2'",
        "tied2": "shares its weight with 'tied'",
        "pruned": "computed from other parameters",
        "normed": "computed from other parameters",
        "biased": "the bias of 'biased' is computed from other parameters",
        "even": "its 4x4 kernel has no centre",
        "flat": "its 1x7 kernel is not 3 or more in each dimension",
        "up": "it is a ConvTranspose2d",
        "own": "a forward of its own",
        "lazy": "has no shape yet",
    }
    assert list(plan.left_out) == list(expected)
    for name, reason in expected.items():
        assert reason in plan.left_out[name]
        assert f"not planned: {name}, since" in str(plan)
    assert max(map(len, str(plan).splitlines())) <= 80
    assert plan.on(odd_net()).left_out == plan.with_scales("ones").left_out == plan.left_out


def test_patterns_leave_nothing_out_in_silence():
    net = nn.Sequential(nn.Conv2d(4, 4, 4))
    assert repopt.plan(net, {"0": [Conv(4)]}).left_out == {}
    with pytest.raises(ValueError, match="cannot be centred"):
        repopt.plan(net, {"0": [Conv(4), Conv(1)]})


def test_a_preset_that_finds_nothing_says_what_it_wants():
    with pytest.raises(ValueError, match=r"'repvgg' finds nothing to plan in this Linear: .* a kernel of 3 or more"):
        repopt.plan(nn.Linear(4, 4), "repvgg")
    with pytest.raises(ValueError, match=r"it leaves out '0: its 4x4 kernel has no centre'"):
        repopt.plan(nn.Sequential(nn.Conv2d(3, 8, 4, 4)), "acnet")


def test_an_unknown_preset_gets_the_list():
    with pytest.raises(ValueError, match="no preset 'RepVGG': give 'repvgg' or 'acnet'"):
        repopt.plan(nn.Conv2d(3, 8, 3), "RepVGG")


def test_a_preset_takes_the_place_of_what_a_model_declares():
    class Declaring(nn.Sequential):
        def repopt_branches(self):
            return {"0": [Conv(3)]}

    net = Declaring(nn.Conv2d(4, 4, 3, padding=1))
    assert list(repopt.plan(net).blocks["0"].branches) == ["conv3x3"]
    assert list(repopt.plan(net, "repvgg").blocks["0"].branches) == ["conv3x3", "conv1x1", "identity"]


def test_a_block_without_identity_has_no_depth():
    """As in the authors' count: sqrt(2/l) falls from one block with an identity to the next, and only there."""
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)))
    assert repopt.plan(net, "repvgg").depths() == {"0": 1, "1": 2, "2": 3}
    assert repopt.plan(net, "acnet").depths() == {"0": 0, "1": 0, "2": 0}


def test_a_function_of_name_and_module_chooses():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(4, 4))
    net.add_module("alias", net[0])
    asked = []

    def choose(name, module):
        asked.append((name, type(module)))
        return [Linear(), Identity()] if isinstance(module, nn.Linear) else [Conv(1)] if name == "2" else None

    plan = repopt.plan(net, choose, scales="ones")
    assert {name: list(block.branches) for name, block in plan.blocks.items()} == {
        "2": ["conv1x1"],
        "4": ["linear", "identity"],
    }
    assert asked == [("0", nn.Conv2d), ("2", nn.Conv2d), ("4", nn.Linear)]
    assert torch.equal(plan.constants("2")["conv1x1"], torch.ones(4))


def test_a_function_that_chooses_badly_is_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="returned None for every convolution and linear layer of this Sequential"):
        repopt.plan(net, lambda name, module: None)
    with pytest.raises(TypeError, match="returned a str for '0': it must return a list of branches"):
        repopt.plan(net, lambda name, module: "repvgg")
    net[1].weight = net[0].weight
    with pytest.raises(ValueError, match="'0' shares its weight with '1'"):
        repopt.plan(net, lambda name, module: [Linear()])
