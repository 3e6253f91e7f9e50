import pytest
import torch
from torch import nn

import repopt
from repopt.plans.patterns import clean, clean_modules


def test_the_names_of_wrappers_are_dropped():
    assert clean("module._orig_mod.stage1.0.conv") == "stage1.0.conv"
    assert clean("blocks._orig_mod.0.conv") == "blocks.0.conv"
    assert clean("module") == ""


def test_a_wrapped_module_has_the_name_it_has_without_the_wrapper():
    net = nn.Sequential(nn.Conv2d(1, 1, 1))
    wrapped = nn.DataParallel(torch.compile(net))
    assert clean_modules(wrapped)["0"] is net[0]
    assert clean_modules(wrapped)[""] is net


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
