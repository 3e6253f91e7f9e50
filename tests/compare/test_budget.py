"""The time of a comparison, and what fits into some minutes."""

import pytest

from repopt.compare.budget import Cost, Extent, fitted, seconds, shortened
from repopt.train.recipe import Recipe

COSTS = [Cost(start=2, epoch=3, seed=5, once=7), Cost(start=1, epoch=6)]
WANTED = Extent(epochs=100, seeds=3, rates=2)


def test_each_way_trains_every_rate_with_the_first_seed_and_one_rate_with_the_others():
    extent = Extent(epochs=10, seeds=3, rates=2)
    assert extent.trainings == 4
    assert seconds(COSTS, extent) == 4 * (2 + 30) + 3 * 5 + 7 + 4 * (1 + 60)


def test_nothing_is_lowered_where_all_fits():
    assert fitted(COSTS, WANTED, minutes=1e6) == WANTED


@pytest.mark.parametrize("minutes", [12, 20, 40])
def test_epochs_are_lowered_first_as_little_as_possible(minutes):
    found = fitted(COSTS, WANTED, minutes)
    more = Extent(epochs=found.epochs + 1, seeds=3, rates=2)
    assert found.seeds == 3
    assert 10 <= found.epochs < 100
    assert seconds(COSTS, found) <= 60 * minutes < seconds(COSTS, more)


def test_seeds_are_lowered_before_less_than_a_tenth_of_the_epochs_remains():
    found = fitted(COSTS, WANTED, minutes=5)
    assert found.seeds < 3
    assert found.epochs >= 10
    assert seconds(COSTS, found) <= 300


@pytest.mark.parametrize("minutes", [1e-9, 0.1])
def test_one_epoch_and_one_seed_remain(minutes):
    assert fitted(COSTS, WANTED, minutes) == Extent(epochs=1, seeds=1, rates=2)


def test_a_short_comparison_keeps_its_epochs():
    assert fitted(COSTS, Extent(epochs=2, seeds=3, rates=1), minutes=1).epochs == 2


def test_the_warm_up_keeps_its_share_of_fewer_epochs():
    assert shortened(Recipe(epochs=100, warmup_epochs=5), 10).warmup_epochs == 0.5
    assert shortened(Recipe(epochs=100, warmup_epochs=5), 200).warmup_epochs == 5
