import pytest

from repopt.report import read_run
from repopt.report.searched import (
    PAPERS_SHARE,
    branches,
    by_depth,
    cost_share,
    over_epochs,
    sampled_operator,
    stage_starts,
    stages,
)
from repopt.report.wording import percent_of
from report.folders import STAGES, write_run


@pytest.fixture
def search(tmp_path):
    return read_run(write_run(tmp_path / "search", "search"))


def test_the_paper_s_search_costs_0_18_percent_of_its_training():
    assert f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}" == percent_of(PAPERS_SHARE) == "0.18%"


def test_stages_start_where_the_paper_says_the_curves_are_split(search):
    assert [len(members) for members in stages(search.scales[15])] == list(STAGES)
    assert stage_starts(search.scales[15]) == [1, 2, 6, 12, 28]  # "the 1st, 2nd, 6th, 12th and last blocks"


def test_the_first_figure_follows_the_last_block_of_the_third_stage(search):
    assert sampled_operator(search.scales[15]) == "stage3.15.conv"
    history = over_epochs(search, "stage3.15.conv")
    assert list(history) == ["conv3x3", "conv1x1", "identity"]
    assert list(history["identity"]) == list(range(16))


def test_the_second_figure_breaks_at_stages_and_has_no_identity_where_the_shape_changes(search):
    pieces = by_depth(search.scales[15])
    assert [len(piece) for piece in pieces["conv3x3"]] == list(STAGES)
    assert [min(piece) for piece in pieces["identity"]] == [3, 7, 13]


def test_a_model_without_identities_is_one_stage():
    means = {"a": {"conv3x3": 1.0}, "b": {"conv3x3": 1.0, "conv1x1": 2.0}}
    assert stages(means) == [["a", "b"]]
    assert sampled_operator(means) == "b"
    assert branches(means) == ["conv3x3", "conv1x1"]
