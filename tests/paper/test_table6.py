"""Table 6: scales of a search with other strides, made to fit the model with the usual ones."""

import pytest
import torch

import repopt
from paper.jobs import planned
from paper.table6 import fitting
from repopt.plans.scales import Scales
from repopt.surgery.conversion import extract_scales, search_model

STRIDES = (2, 1, 2, 1, 1)


def searched(model):
    """Scales as a search with other strides leaves them, before its first step."""
    searching = repopt.create_model(model, strides=STRIDES)
    return Scales(extract_scales(search_model(searching, repopt.plan(searching))), {"from": "a search"})


@pytest.mark.parametrize("model", ["repopt_vgg_a0", "repopt_vgg_b0"])
def test_an_identity_that_the_target_lacks_is_left_out_and_counted(model):
    """Stem and first stage have one width: without a stride, the first layer behind the stem keeps the shape."""
    scales, plan = searched(model), planned(model)
    assert "identity" in scales["stage1.0.conv"]
    with pytest.raises(ValueError, match=r"stage1\.0\.conv"):
        repopt.plan(plan.model, scales=scales)
    fitted, dropped = fitting(scales, plan)
    assert dropped == 1
    assert "identity" not in fitted["stage1.0.conv"]
    assert "identity" in fitted["stage1.1.conv"]
    assert fitted.metadata == {"from": "a search"}
    assert repopt.plan(plan.model, scales=fitted).operators == plan.operators
    for name, branches in fitted.items():
        assert all(torch.equal(scale, scales[name][branch]) for branch, scale in branches.items())


def test_where_each_stage_is_wider_than_the_last_nothing_is_left_out():
    scales = searched("repopt_vgg_nano")
    fitted, dropped = fitting(scales, planned("repopt_vgg_nano"))
    assert dropped == 0
    assert {name: set(branches) for name, branches in fitted.items()} == {
        name: set(branches) for name, branches in scales.items()
    }
