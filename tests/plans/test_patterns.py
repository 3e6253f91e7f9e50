import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

import repopt
from repopt.plans.patterns import clean, clean_modules


def test_the_names_of_wrappers_are_dropped():
    assert clean("module._orig_mod.stage1.0.conv") == "stage1.0.conv"
    assert clean("blocks._orig_mod.0.conv") == "blocks.0.conv"
    assert clean("module") == ""


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, torch.compile, checkpoint_wrapper, lambda net: nn.DataParallel(torch.compile(net))]
)
def test_a_wrapped_module_has_the_name_it_has_without_the_wrapper(wrap):
    net = nn.Sequential(nn.Conv2d(1, 1, 1))
    averaged = AveragedModel(wrap(net))
    assert clean_modules(wrap(net)) == {"": net, "0": net[0]}
    assert [type(module) for module in clean_modules(averaged).values()] == [nn.Sequential, nn.Conv2d]


class NoWrapper(nn.Module):
    """A network that calls a child as wrappers call theirs."""

    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1))
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.conv(self.module(x))

    def repopt_branches(self):
        return {r"conv|module\.0": [repopt.Conv(3), repopt.Conv(1)]}


@pytest.mark.parametrize("wrap", [lambda net: net, nn.DataParallel])
def test_a_child_called_module_keeps_its_name_and_its_parent_in_a_network(wrap):
    net = NoWrapper()
    assert clean_modules(wrap(net)) == {"": net, "module": net.module, "module.0": net.module[0], "conv": net.conv}


def test_a_network_with_a_child_called_module_is_planned_with_scales_of_its_own(tmp_path):
    plan = repopt.plan(NoWrapper(), scales="depth")
    assert plan.operators == ("module.0", "conv")
    plan.scales.save(tmp_path / "net.safetensors")
    assert repopt.plan(NoWrapper(), scales=tmp_path / "net.safetensors").scales == plan.scales
    assert plan.scales.only(plan) == plan.scales
    by_old_names = {"0": plan.scales["module.0"], "conv": plan.scales["conv"]}
    assert plan.with_scales(by_old_names).scales == plan.scales
    assert repopt.extract_scales(repopt.search_model(plan.model, plan)) == plan.scales


def test_a_network_that_declares_its_branches_is_no_wrapper():
    net = NoWrapper()
    del net.conv
    assert repopt.plan(nn.DataParallel(net), scales="ones").operators == ("module.0",)


def test_two_modules_of_one_clean_name_are_an_error_that_names_both():
    net = nn.Module()
    net.conv = nn.Conv2d(1, 1, 1)
    net.module = nn.Module()
    net.module.conv = nn.Conv2d(1, 1, 1)
    with pytest.raises(ValueError, match=r"'conv' and 'module\.conv' are both called 'conv'"):
        clean_modules(net)


def test_a_pattern_behind_others_that_match_all_it_matches_is_an_error():
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    with pytest.raises(ValueError, match=r"the pattern '\^1\$' has no effect"):
        repopt.plan(net, {r"\d": [repopt.Conv(3)], "^1$": [repopt.Conv(1)]})
    assert len(repopt.plan(net, {"^1$": [repopt.Conv(3), repopt.Conv(1)], r"\d": [repopt.Conv(3)]}).operators) == 2


def test_true_is_no_kernel_size():
    with pytest.raises(ValueError, match="its kernel size must be one positive number"):
        repopt.plan(nn.Sequential(nn.Conv2d(3, 3, 3)), {"0": [repopt.Conv(True)]})
