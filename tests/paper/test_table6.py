"""Table 6: scales of a search with other strides, made to fit the model with the usual ones."""

import pytest
import torch

import repopt
from made_up import line
from paper import TABLES
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


def test_the_page_says_where_identities_were_left_out():
    usual = line(strides="2 2 2 2 2", model="repopt_vgg_b0", search_accuracy=54, val_accuracy=78, dropped_identities=0)
    other = line(
        strides="2 1 2 1 1", model="repopt_vgg_b0", search_accuracy=74, val_accuracy=77.5, dropped_identities=1
    )
    part = TABLES["table6"].part([usual, other])
    assert "| 2 1 2 1 1 | 74.00 | 1 | 77.50 | -0.50 | 74.37 | 77.88 |" in part
    assert part[-1] == "Identity entries that the target's layers do not have were left out."
    assert part[-1] not in TABLES["table6"].part([usual])


def test_strides_are_worse_only_if_they_are_to_both_searches():
    about = {"model": "repopt_vgg_a0", "search_accuracy": 54, "dropped_identities": 0}
    rows = [
        line(**about, strides=strides, seed=seed, val_accuracy=value)
        for strides, values in {"2 2 2 2 2": (80, 82), "searched again": (76, 78), "2 1 2 1 1": (75, 77)}.items()
        for seed, value in enumerate(values)
    ]
    part = TABLES["table6"].part(rows)
    assert "| 2 1 2 1 1 | 54.00 | 2 | 76.00 ± 1.41 | -5.00 ± 1.41 | -1.00 ± 1.41 | 74.37 | 77.88 |" in part
    (claim,) = TABLES["table6"].claims(rows)
    assert claim.finding == "depends on the search"
    (claim,) = TABLES["table6"].claims([row for row in rows if row["strides"] != "searched again"])
    assert claim.finding == "agrees"
