"""What tables train, with which scales, and on what: the paper's models on public data, or nano on a few digits."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import repopt
from made_up import QUICK
from paper.jobs import (
    TRAINED_BY,
    Scope,
    Source,
    Training,
    authors_scales,
    fitting,
    hyper_search,
    planned,
    scales_from,
)
from paper.workshop import Workshop
from repopt.plans.scales import Scales
from repopt.surgery.conversion import extract_scales, search_model
from repopt.train import recipe as recipes

NANO = "repopt_vgg_nano"
FULL = Scope(cifar100=Path("cifar"), imagenette=Path("nette"))
STRIDES = (2, 1, 2, 1, 1)


def same(one, other):
    return set(one) == set(other) and all(
        set(one[name]) == set(other[name])
        and all(torch.equal(one[name][branch], other[name][branch]) for branch in one[name])
        for name in one
    )


def search_job(scope, model, **how):
    """A search needs no workshop: its scales are what is looked for."""
    return hyper_search(model=model, **how).job(scope, 0, None)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(folder=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.fixture(scope="module")
def found(workshop):
    """What a search finds for nano."""
    return Scales.load(workshop.run(search_job(QUICK, NANO)) / "scales.safetensors")


def test_a_search_and_a_training_are_on_the_scopes_data(workshop):
    cifar, nette = FULL.data("cifar100"), FULL.data("imagenette")
    search = search_job(FULL, "repopt_vgg_b1")
    assert (search.method, search.data, search.recipe) == (
        "search",
        cifar,
        FULL.adapt(recipes.search(), 0),
    )
    training = Training(model="b1", method="sgd").job(FULL, 2, workshop)
    assert (training.method, training.data, training.recipe) == (
        "sgd",
        nette,
        FULL.adapt(TRAINED_BY["imagenette"], 2),
    )
    on_cifar = Training(model="b1", method="sgd", data="cifar100").job(FULL, 2, workshop)
    assert (on_cifar.data, on_cifar.recipe.epochs, on_cifar.recipe.seed) == (cifar, 60, 2)
    assert (search.limit, search_job(QUICK, NANO).limit) == (None, QUICK.limit)


def test_a_second_search_differs_in_its_seed_alone():
    first, again = search_job(FULL, NANO), search_job(FULL, NANO, again=True)
    assert again == replace(first, recipe=replace(first.recipe, seed=first.recipe.seed + 1))
    assert search_job(replace(FULL, seeds=(4, 5)), NANO) == first


def test_what_is_asked_for_takes_the_place_of_the_default(workshop):
    search = search_job(FULL, NANO, recipe=recipes.ghost_search(), data="digits", options={"strides": STRIDES})
    assert search.recipe == FULL.adapt(replace(recipes.ghost_search(), flip=False), 0)
    assert (search.data, search.options) == ("digits", {"strides": (2, 1, 2, 1, 1)})
    assert search_job(FULL, NANO, data="imagenette").recipe.size == 96
    assert search_job(FULL, "repopt_ghostnet_050").recipe == FULL.adapt(recipes.ghost_search(), 0)
    changed = Training(model=NANO, method="sgd", fields={"lr": 0.5, "rules": "iteration"}, options={"se": True})
    training = changed.job(FULL, 0, workshop)
    assert (training.recipe.lr, training.recipe.rules, training.recipe.epochs) == (0.5, "iteration", 40)
    assert training.options == {"se": True}


@pytest.mark.parametrize("source", [source for source in get_args(Source) if source != "authors"])
def test_scales_of_every_source_fit_the_model(source, workshop, found):
    scales = scales_from(source, QUICK, workshop, NANO)
    assert repopt.plan(repopt.create_model(NANO), scales=scales).operators


def test_the_sources_are_what_they_are_called(workshop):
    plan, found = planned(NANO), Scales.load(NANO)
    assert same(scales_from("searched", QUICK, workshop, NANO), found)
    assert same(scales_from("ones", QUICK, workshop, NANO), Scales.constant(plan, 1.0))
    assert same(scales_from("depth", QUICK, workshop, NANO), Scales.depth_init(plan))
    means = scales_from("mean", QUICK, workshop, NANO)
    layer = "stage3.5.conv"
    torch.testing.assert_close(means[layer]["conv1x1"], found[layer]["conv1x1"].mean().expand(32))
    assert not same(means, found)


def test_scales_that_ship_are_not_searched_again(tmp_path):
    ours = scales_from("searched", FULL, Workshop(folder=tmp_path / "runs", device="cpu"), "repopt_vgg_b1")
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


def test_models_and_data_are_the_users_or_the_embedded_ones():
    assert (FULL.model("b1"), FULL.data("cifar100"), FULL.data("imagenette"), FULL.limit) == (
        "repopt_vgg_b1",
        f"cifar100:{Path.cwd() / 'cifar'}",  # however it is spelt: a run is named after it
        f"folder:{Path.cwd() / 'nette'}",
        None,
    )
    assert (QUICK.model("b1"), QUICK.data("cifar100"), QUICK.data("imagenette")) == (
        "repopt_vgg_nano",
        "digits",
        "digits",
    )
    assert QUICK.limit < 100


def test_data_that_was_not_given_is_asked_for_by_its_flag():
    with pytest.raises(ValueError, match="this table needs data: give --cifar100, the folder of CIFAR-100"):
        Scope(imagenette=Path("nette")).data("cifar100")
    with pytest.raises(ValueError, match="this table needs data: give --imagenette, the folder that holds its train"):
        Scope(cifar100=Path("cifar")).data("imagenette")


def test_a_recipe_takes_the_scopes_seed_and_precision_and_stays_what_it_is():
    scope = Scope(precision="fp32", seeds=(4, 5))
    assert scope.adapt(recipes.ghost(), 4) == recipes.Recipe(**{**vars(recipes.ghost()), "seed": 4})
    assert FULL.adapt(recipes.ghost(), 0).precision == "bf16"


def test_there_are_three_seeds_or_one_where_quick_unless_they_are_given():
    assert (Scope().seeds, Scope(quick=True).seeds) == ((0, 1, 2), (0,))
    assert Scope(quick=True, seeds=(0, 1, 2)).seeds == (0, 1, 2)


def test_a_quick_recipe_is_short_and_keeps_what_is_compared():
    recipe = QUICK.adapt(recipes.ghost(), 0)
    assert (recipe.epochs, recipe.size, recipe.precision, recipe.warmup_epochs) == (1, None, "fp32", 0)
    assert recipe.batch_size < QUICK.limit
    assert (recipe.weight_decay, recipe.dropout, recipe.optimizer) == (recipes.ghost().weight_decay, 0.2, "SGD")


def test_seeds_are_all_that_two_recipes_differ_in():
    one, other = (vars(FULL.adapt(TRAINED_BY["imagenette"], seed)) for seed in (0, 1))
    assert {name for name in one if one[name] != other[name]} == {"seed"}
    assert (one["epochs"], one["size"], one["batch_size"]) == (40, 96, 256)


def searched(model):
    """Scales as a search with other strides leaves them, before its first step."""
    searching = repopt.create_model(model, strides=STRIDES)
    return Scales(extract_scales(search_model(searching, repopt.plan(searching))), {"from": "a search"})


@pytest.mark.parametrize("model", ["repopt_vgg_a0", "repopt_vgg_b0"])
def test_an_identity_that_the_target_lacks_is_left_out(model):
    """Stem and first stage have one width: without a stride, the first layer behind the stem keeps the shape."""
    scales, plan = searched(model), planned(model)
    assert "identity" in scales["stage1.0.conv"]
    with pytest.raises(ValueError, match=r"stage1\.0\.conv"):
        repopt.plan(plan.model, scales=scales)
    fitted = fitting(scales, plan)
    assert "identity" not in fitted["stage1.0.conv"]
    assert "identity" in fitted["stage1.1.conv"]
    assert fitted.metadata == {"from": "a search"}
    assert repopt.plan(plan.model, scales=fitted).operators == plan.operators
    for name, branches in fitted.items():
        assert all(torch.equal(scale, scales[name][branch]) for branch, scale in branches.items())


def test_where_each_stage_is_wider_than_the_last_nothing_is_left_out():
    scales = searched("repopt_vgg_nano")
    fitted = fitting(scales, planned("repopt_vgg_nano"))
    assert {name: set(branches) for name, branches in fitted.items()} == {
        name: set(branches) for name, branches in scales.items()
    }
