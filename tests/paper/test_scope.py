"""What a table is run on: the paper's models on public data, or nano on a few digits."""

from pathlib import Path

import pytest

from made_up import QUICK
from paper.scope import Scope
from repopt.train.recipe import Recipe, ghost

FULL = Scope(cifar100=Path("data/cifar"), imagenette=Path("data/nette"))


def test_models_and_data_are_the_users_or_the_embedded_ones():
    assert (FULL.model("b1"), FULL.search_data, FULL.target_data, FULL.limit) == (
        "repopt_vgg_b1",
        f"cifar100:{Path.cwd() / 'data' / 'cifar'}",  # however it is spelt: a run is named after it
        f"folder:{Path.cwd() / 'data' / 'nette'}",
        None,
    )
    assert (QUICK.model("b1"), QUICK.search_data, QUICK.target_data) == ("repopt_vgg_nano", "digits", "digits")
    assert QUICK.limit < 100


def test_data_that_was_not_given_is_asked_for_by_its_flag():
    with pytest.raises(ValueError, match="this table needs data: give --cifar100, the folder of CIFAR-100"):
        _ = Scope(imagenette=Path("nette")).search_data
    with pytest.raises(ValueError, match="this table needs data: give --imagenette, the folder that holds its train"):
        _ = Scope(cifar100=Path("cifar")).target_data


def test_a_recipe_takes_the_scopes_seed_and_precision_and_stays_what_it_is():
    scope = Scope(precision="fp32", seeds=(4, 5))
    assert scope.adapt(ghost(), 4) == Recipe(**{**vars(ghost()), "seed": 4})
    assert FULL.adapt(ghost(), 0).precision == "bf16"


def test_a_scope_has_a_seed():
    with pytest.raises(ValueError, match="a table needs at least one seed: give --seeds"):
        Scope(seeds=())


def test_all_data_that_a_table_needs_is_asked_for_at_once():
    Scope().check(())
    QUICK.check(("cifar100", "imagenette"))
    FULL.check(("cifar100", "imagenette"))
    with pytest.raises(ValueError, match="--imagenette"):
        Scope(cifar100=Path("cifar")).check(("cifar100", "imagenette"))


def test_a_quick_recipe_is_short_and_keeps_what_is_compared():
    recipe = QUICK.adapt(ghost(), 0)
    assert (recipe.epochs, recipe.size, recipe.precision, recipe.warmup_epochs) == (1, None, "fp32", 0)
    assert recipe.batch_size < QUICK.limit
    assert (recipe.weight_decay, recipe.dropout, recipe.optimizer) == (ghost().weight_decay, 0.2, "SGD")


def test_seeds_are_all_that_two_target_recipes_differ_in():
    one, other = (vars(FULL.target_recipe(seed)) for seed in (0, 1))
    assert {name for name in one if one[name] != other[name]} == {"seed"}
    assert (one["epochs"], one["size"], one["batch_size"]) == (40, 96, 256)
