"""The trainings that tables are made of, and the scales that they are given."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import repopt
from made_up import QUICK
from paper.jobs import (
    SEARCHED_AGAIN,
    HyperSearch,
    Source,
    Training,
    authors_scales,
    own_scales,
    planned,
    scales_from,
    search_job,
    training_job,
)
from paper.scope import Scope
from paper.workshop import Workshop
from repopt.plans.scales import Scales
from repopt.train import recipe as recipes

NANO = "repopt_vgg_nano"
FULL = Scope(cifar100=Path("cifar"), imagenette=Path("nette"))


def same(one, other):
    return set(one) == set(other) and all(
        set(one[name]) == set(other[name])
        and all(torch.equal(one[name][branch], other[name][branch]) for branch in one[name])
        for name in one
    )


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(folder=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.fixture(scope="module")
def found(workshop):
    """What a search finds for nano."""
    return workshop.searched(search_job(QUICK, NANO))


def test_a_search_and_a_training_are_on_the_scopes_data(workshop):
    search = search_job(FULL, "repopt_vgg_b1")
    assert (search.method, search.data, search.recipe) == ("search", FULL.search_data, FULL.adapt(recipes.search(), 0))
    training = training_job(FULL, workshop, Training(model="b1", method="sgd"), 2)
    assert (training.method, training.data, training.recipe) == ("sgd", FULL.target_data, FULL.target_recipe(2))
    on_cifar = training_job(FULL, workshop, Training(model="b1", method="sgd", data="cifar100"), 2)
    assert (on_cifar.data, on_cifar.recipe.epochs, on_cifar.recipe.seed) == (FULL.search_data, 60, 2)
    assert (search.limit, search_job(QUICK, NANO).limit) == (None, QUICK.limit)


def test_a_second_search_differs_in_its_seed_alone():
    first, again = search_job(FULL, NANO), search_job(FULL, NANO, SEARCHED_AGAIN)
    assert again == replace(first, recipe=replace(first.recipe, seed=first.recipe.seed + 1))
    assert search_job(replace(FULL, seeds=(4, 5)), NANO) == first


def test_what_is_asked_for_takes_the_place_of_the_default(workshop):
    search = search_job(FULL, NANO, HyperSearch(recipe=recipes.ghost_search(), data="digits", strides=(2, 1, 2, 1, 1)))
    assert search.recipe == FULL.adapt(replace(recipes.ghost_search(), flip=False), 0)
    assert (search.data, search.options) == ("digits", {"strides": (2, 1, 2, 1, 1)})
    assert search_job(FULL, NANO, HyperSearch(data="imagenette")).recipe.size == 96
    assert search_job(FULL, "repopt_ghostnet_050").recipe == FULL.adapt(recipes.ghost_search(), 0)
    changed = Training(model=NANO, method="sgd", fields={"lr": 0.5, "rules": "iteration"}, options={"se": True})
    training = training_job(FULL, workshop, changed, 0)
    assert (training.recipe.lr, training.recipe.rules, training.recipe.epochs) == (0.5, "iteration", 40)
    assert training.options == {"se": True}


@pytest.mark.parametrize("source", [source for source in get_args(Source) if source != "authors"])
def test_scales_of_every_source_fit_the_model(source, workshop, found):
    scales = scales_from(source, QUICK, workshop, NANO)
    assert repopt.plan(repopt.create_model(NANO), scales=scales).operators


def test_the_sources_are_what_they_are_called(workshop, found):
    plan = planned(NANO)
    assert same(scales_from("searched", QUICK, workshop, NANO), found)
    assert same(scales_from("ones", QUICK, workshop, NANO), Scales.constant(plan, 1.0))
    assert same(scales_from("depth", QUICK, workshop, NANO), Scales.depth_init(plan))
    means = scales_from("mean", QUICK, workshop, NANO)
    layer = "stage3.5.conv"
    torch.testing.assert_close(means[layer]["conv1x1"], found[layer]["conv1x1"].mean().expand(32))
    assert not same(means, found)


def test_scales_that_ship_are_not_searched_again(tmp_path):
    ours = own_scales(FULL, Workshop(folder=tmp_path / "runs", device="cpu"), "repopt_vgg_b1")
    assert same(ours, Scales.load("repopt_vgg_b1"))
    assert not (tmp_path / "runs").exists()


def test_the_authors_file_of_a_model_is_found_and_fits_it(authors_scales, workshop):
    scope = Scope(authors=authors_scales)
    for size in ("b1", "b2", "l1", "l2"):
        scales = scales_from("authors", scope, workshop, f"repopt_vgg_{size}")
        assert scales.metadata["source"] == f"the authors' RepOpt-VGG-{size.upper()}-scales.pth"
    scales = scales_from("authors", scope, workshop, "repopt_vgg_b1")
    assert repopt.plan(repopt.create_model("repopt_vgg_b1"), scales=scales).operators
    scales = scales_from("authors", scope, workshop, "repopt_ghostnet_050")
    assert repopt.plan(repopt.create_model("repopt_ghostnet_050"), scales=scales).operators


def test_authors_scales_that_are_not_there_are_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"give --authors, the folder of the \.pth files"):
        authors_scales(Scope(), "repopt_vgg_b1")
    with pytest.raises(ValueError, match=r"holds no \.pth file for B1"):
        authors_scales(Scope(authors=tmp_path), "repopt_vgg_b1")
    with pytest.raises(ValueError, match=r"holds no \.pth file for 1_3x"):
        authors_scales(Scope(authors=tmp_path), "repopt_ghostnet_130")
