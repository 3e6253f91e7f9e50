"""Which ways fit which model."""

from dataclasses import replace

import pytest

from repopt.compare.study import Study, rates_around
from repopt.compare.ways import WAYS, chosen_ways, shipped_scales
from repopt.train.recipe import demo


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("repopt_vgg_b0", ["sgd", "dirac", "repopt", "repvgg", "qarepvgg"]),
        ("repopt_ghostnet_050", ["sgd", "dirac", "repopt", "repvgg"]),
        ("timm:resnet18", ["sgd", "dirac", "repopt", "branches"]),
        ("mine:net", ["sgd", "dirac", "repopt", "branches"]),
    ],
)
def test_the_ways_that_fit_a_model(model, names):
    assert [way.name for way in chosen_ways(model, ())] == names


def test_scales_belong_to_repopt_alone():
    ways = {way.name: way.scales for way in chosen_ways("repopt_vgg_nano", tuple(WAYS), "mine.safetensors")}
    assert {name: scales for name, scales in ways.items() if scales is not None} == {
        "repopt": "mine.safetensors",
        "repopt:depth": "depth",
        "repopt:ones": "ones",
        "repopt:learn": "learn",
    }


def test_shipped_scales_are_for_the_model_as_it_is():
    assert shipped_scales("repopt_vgg_nano", changed=False) == "repopt_vgg_nano"
    assert shipped_scales("repopt_vgg_nano", changed=True) is None
    assert shipped_scales("timm:resnet18", changed=False) is None


def test_jobs_differ_in_method_rate_and_seed_alone():
    ways = chosen_ways("mine:net", ("sgd", "dirac", "repopt", "branches", "qarepvgg"))
    study = Study(
        model="mine:net", data="digits", ways=ways, recipe=demo(), rates=rates_around(0.1), seeds=2, branches="acnet"
    )
    jobs = [study.job(way, 0.3, 1) for way in ways]
    assert len({job.recipe for job in jobs}) == 1
    assert (jobs[0].recipe.lr, jobs[0].recipe.seed) == (0.3, 1)
    assert [job.branches for job in jobs] == [None, "acnet", "acnet", "acnet", "acnet"]
    assert [job.scales for job in jobs] == [None, None, "depth", None, None]


def test_a_recipe_may_say_when_learned_scales_are_frozen():
    """The other ways, which learn none, go without it."""
    ways, recipe = chosen_ways("mine:net", ("sgd", "repopt:learn")), replace(demo(), freeze_at=0.3)
    study = Study(model="mine:net", data="digits", ways=ways, recipe=recipe, rates=(0.1,), seeds=1)
    assert [study.job(way, 0.1, 0).recipe.freeze_at for way in ways] == [None, 0.3]


@pytest.mark.parametrize(("model", "plain"), [("repopt_vgg_nano", "paper"), ("mine:net", "authors")])
def test_plain_sgd_starts_as_suits_it_best(model, plain):
    """From He's init; a network of other code draws its own."""
    ways = chosen_ways(model, ("sgd", "dirac", "repopt"))
    study = Study(model=model, data="digits", ways=ways, recipe=demo(), rates=(0.1,), seeds=1)
    assert [study.job(way, 0.1, 0).recipe.kernel for way in ways] == [plain, "authors", "authors"]
