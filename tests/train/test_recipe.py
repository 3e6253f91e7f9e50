import dataclasses
import json

import pytest

from repopt.train.recipe import RECIPES, Recipe, load_recipe, lr_at, with_batch_for


def test_the_papers_recipe_for_imagenet():
    recipe = load_recipe("imagenet")
    assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.warmup_epochs) == (120, 256, 0.1, 5)
    assert (recipe.label_smoothing, recipe.weight_decay, recipe.momentum, recipe.nesterov) == (0.1, 4e-5, 0.9, True)
    assert recipe.randaugment == (2, 15)


def test_small_data_forget_their_start_about_as_much_as_the_papers_training():
    """The learning rate times the decay, summed over all steps of a cosine: 1.2 on ImageNet, and on 50,000 images."""
    for name, images in (("imagenet", 1_281_167), ("small", 50_000)):
        recipe = load_recipe(name)
        steps = recipe.epochs * images // recipe.batch_size
        assert recipe.lr / 2 * recipe.weight_decay * steps == pytest.approx(1.2, rel=0.05)


def test_the_three_search_recipes_differ_where_the_paper_and_the_code_do():
    released, clipped, paper = (load_recipe(name) for name in ("search", "search-clipped", "search-paper"))
    assert (released.label_smoothing, released.warmup_epochs, released.clip) == (0.0, 5, None)
    assert (clipped.label_smoothing, clipped.warmup_epochs, clipped.clip) == (0.1, 10, 5.0)
    assert (paper.label_smoothing, paper.clip, paper.start, paper.kernel) == (0.1, None, "paper", "paper")
    assert {recipe.epochs for recipe in (released, clipped, paper)} == {240}


@pytest.mark.parametrize(
    ("images", "processes", "batch"),
    [(256, 1, 256), (250, 1, 248), (250, 3, 240)],
)
def test_a_batch_larger_than_the_data_shrinks_to_what_its_parts_can_share(images, processes, batch):
    assert with_batch_for(Recipe(batch_size=256, accumulate=4), images, processes).batch_size == batch


def test_the_learning_rate_warms_up_falls_as_a_cosine_and_follows_the_batch():
    recipe = Recipe(epochs=10, warmup_epochs=2, lr=0.1, lr_batch=256, batch_size=512)
    rates = [lr_at(recipe, step, 10) for step in range(100)]
    assert rates[:20] == sorted(rates[:20])
    assert max(rates) == rates[20] == pytest.approx(0.2)
    assert rates[60] == pytest.approx(0.1)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] < 1e-3


def test_a_warm_up_may_start_above_zero():
    ghost = load_recipe("ghost")
    scaled = dataclasses.replace(ghost, batch_size=256)
    assert lr_at(scaled, 0, 1000) == pytest.approx(1e-4 + 0.6 / 5001, rel=0.01)
    assert lr_at(ghost, 5000, 1000) == pytest.approx(2.4)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_goes_to_json_and_back(name, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(dataclasses.asdict(load_recipe(name))))
    assert load_recipe(path) == load_recipe(name)


def test_a_file_changes_some_fields_of_a_named_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "search"\nepochs = 7\nresized_crop = [0.5, 1.0]\ncrop_padding = 0\n')
    assert load_recipe(path) == dataclasses.replace(
        load_recipe("search"), epochs=7, resized_crop=(0.5, 1.0), crop_padding=0
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch = 3", "has the field 'epoch', which no recipe has: did you mean epochs"),
        ("epochs = 0", "the recipe's epochs must be at least 1 and at most 2147483647, not 0"),
        ("lr = -0.1", r"the recipe's lr must be more than 0 and at most 1e\+38, not -0.1"),
        ("momentum = -1", "the recipe's momentum must be at least 0 and less than 1, not -1"),
        ("label_smoothing = 1.0", r"the recipe's label_smoothing must be at least 0 and less than 1, not 1.0"),
        ("clip = 0", "the recipe's clip must be more than 0 and"),
        ("accumulate = 3", "a batch of 256 cannot be computed in 3 equal parts"),
        ('optimizer = "RepOptimizer"', "torch.optim has no 'RepOptimizer'"),
        ('optimizer = "AdamX"', "torch.optim has no 'AdamX': did you mean Adam"),
        ('base = "serch"', "has the base 'serch', which no recipe is: did you mean search"),
        ("epochs = ", "cannot be read"),
        ('precision = "fp64"', "the recipe's precision must be one of 'fp32', 'tf32', 'bf16', 'fp16', not 'fp64'"),
        ('epochs = "many"', "the recipe's epochs must be a whole number, not 'many'"),
        ("epochs = 1.5", "the recipe's epochs must be a whole number, not 1.5"),
        ("seed = true", "the recipe's seed must be a whole number, not True"),
        ('clip = "5"', "the recipe's clip must be a number, not '5'"),
        ("eval_size = 0", "the recipe's eval_size must be at least 1 and at most 8192, not 0"),
        ('start = "author"', "the recipe's start must be one of 'authors', 'paper' or a number, not 'author'"),
    ],
)
def test_what_no_recipe_can_be_is_said(text, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_recipe(path)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no recipe file"):
        load_recipe(tmp_path / "none.toml")
