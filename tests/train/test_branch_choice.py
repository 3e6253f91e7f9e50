"""The branches of a training, as a preset or by the names in a TOML file."""

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.train.branch_choice import as_branches, chosen, read_choice

NET = nn.ModuleDict({"conv": nn.Conv2d(16, 16, 7, padding=3), "fc": nn.Linear(4, 4)})


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("conv7x7", Conv((7, 7))),
        ("conv1x3", Conv((1, 3))),
        ("conv3x3d2", Conv((3, 3), dilation=2)),
        ("conv3x3d1x2", Conv((3, 3), dilation=(1, 2))),
        ("conv1x1g8", Conv((1, 1), groups=8)),
        ("conv3x3d2g4", Conv((3, 3), dilation=2, groups=4)),
        ("identity", Identity()),
    ],
)
def test_a_branch_is_named_as_a_plan_shows_it(name, branch):
    assert as_branches({"conv": [name]}) == {"conv": [branch]}
    assert [*repopt.plan(NET, as_branches({"conv": [name]})).blocks["conv"].branches] == [name]


def test_one_number_of_taps_is_for_all_dimensions():
    assert as_branches({"a": ["conv3", "linear"]}) == {"a": [Conv(3), Linear()]}


def test_a_file_gives_branches_by_regular_expression_the_first_match_wins(tmp_path):
    file = tmp_path / "branches.toml"
    file.write_text("""
        'conv$' = ["conv7x7", "conv3x3d2", "conv1x1", "identity"]
        'fc$' = ["linear", "identity"]
    """)
    choice = read_choice(str(file))
    assert choice == {"conv$": ["conv7x7", "conv3x3d2", "conv1x1", "identity"], "fc$": ["linear", "identity"]}
    assert repopt.plan(NET, as_branches(choice)).operators == ("conv", "fc")


def test_a_model_that_declares_its_branches_keeps_them_and_any_other_gets_repvggs():
    own = repopt.create_model("repopt_vgg_nano")
    assert chosen(None, own) is None
    assert chosen("acnet", own) == "acnet"
    assert chosen(None, NET) == "repvgg"
    with torch.device("meta"):
        assert [*repopt.plan(NET, as_branches(chosen(None, NET))).blocks["conv"].branches] == [
            *("conv7x7", "conv1x1", "identity")
        ]
