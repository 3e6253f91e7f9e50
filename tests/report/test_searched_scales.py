"""Which scales appendix E looks at, and what a search costs."""

import pytest

from repopt.report.page import cost_share
from repopt.report.searched_scales import (
    by_depth,
    over_epochs,
    sampled_operator,
    searched_branches,
    stage_starts,
    stages,
)
from repopt.train.records import read_run
from report.folders import STAGES, write_run


@pytest.fixture
def history(tmp_path):
    return read_run(write_run(tmp_path / "search", "search")).scales


def test_stages_start_where_the_paper_says_the_curves_are_split(history):
    assert [len(members) for members in stages(history[15])] == list(STAGES)
    assert stage_starts(history[15]) == [1, 2, 6, 12, 28]  # "the 1st, 2nd, 6th, 12th and last blocks"


def test_the_first_figure_follows_the_last_block_of_the_third_stage(history):
    assert sampled_operator(history[15]) == "stage3.15.conv"
    followed = over_epochs(history, "stage3.15.conv")
    assert list(followed) == ["conv3x3", "conv1x1", "identity"]
    assert list(followed["identity"]) == list(range(16))


def test_the_second_figure_breaks_at_stages_and_has_no_identity_where_the_shape_changes(history):
    pieces = by_depth(history[15])
    assert [len(piece) for piece in pieces["conv3x3"]] == list(STAGES)
    assert [min(piece) for piece in pieces["identity"]] == [3, 7, 13]


def test_a_model_without_identities_is_one_stage():
    means = {"a": {"conv3x3": 1.0}, "b": {"conv3x3": 1.0, "conv1x1": 2.0}}
    assert stages(means) == [["a", "b"]]
    assert sampled_operator(means) == "b"
    assert searched_branches(means) == ["conv3x3", "conv1x1"]


def test_the_paper_s_search_costs_0_18_percent_of_its_training():
    assert f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}" == "0.18%"
