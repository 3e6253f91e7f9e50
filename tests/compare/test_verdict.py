"""The better rate, the best way, the noise, and what INT8 costs."""

import math

import pytest

from made_up import measured_way as way
from repopt.compare.verdict import best_rate, is_noise, ranked, sentences, standard_error


@pytest.mark.parametrize(
    ("accuracies", "rate"),
    [
        ({0.1: 80.0, 0.3: 81.0}, 0.3),
        ({0.1: 82.0, 0.3: 81.0}, 0.1),
        ({0.3: 81.0, 0.1: 81.0}, 0.1),
        ({0.1: 10.0, 0.3: None}, 0.1),
        ({0.1: None, 0.3: 0.0}, 0.3),
        ({0.3: None, 0.1: None}, 0.1),
    ],
)
def test_the_better_rate_is_chosen_and_a_training_that_diverged_is_the_worst(accuracies, rate):
    assert best_rate(accuracies) == rate


def test_the_error_of_a_mean_is_its_deviation_over_the_root_of_the_seeds():
    assert standard_error([80.0, 82.0, 84.0], images=10_000) == pytest.approx(2 / math.sqrt(3))


def test_seeds_that_agree_by_chance_are_not_known_better_than_one_image():
    assert standard_error([85.0, 85.0], images=20) == pytest.approx(5 / math.sqrt(2))


@pytest.mark.parametrize(("accuracy", "images"), [(90.0, 400), (100.0, 20), (0.0, 20)])
def test_a_single_seed_has_the_error_of_its_images(accuracy, images):
    assert 0 < standard_error([accuracy], images) < 100 / math.sqrt(images)


def test_the_best_comes_first_and_a_way_that_diverged_has_no_place():
    order = ranked([way("a", 70.0), way("b", 90.0), way("c", diverged=1)])
    assert [each.name for each in order] == ["b", "a"]


def test_of_equals_the_better_one_in_int8_comes_first():
    order = ranked([way("a", 90.0, int8=(85.0,)), way("b", 90.0, int8=(89.0,)), way("c", 91.0, int8=(70.0,))])
    assert [each.name for each in order] == ["c", "b", "a"]


def test_noise_is_two_standard_errors_of_the_difference():
    best, near, far = way("best", 89.0, 91.0), way("near", 87.5, 88.5), way("far", 86.0, 86.2)
    assert is_noise(best, near)
    assert not is_noise(best, far)


def test_the_words_name_the_best_the_noise_and_the_cost_of_int8():
    ways = [way("sgd", 80.0, 80.2, int8=(79.0, 79.2)), way("repopt", 90.0, 92.0, int8=(89.5, 91.5))]
    said = " ".join(sentences([*ways, way("dirac", 89.0, 91.0, int8=(89.9, 91.9))]))
    assert "Best: repopt" in said
    assert "of the best: dirac." in said
    assert "sgd by 10.90" in said
    assert "sgd 1.00" in said
    assert "Best in INT8: dirac" in said


def test_what_weakens_a_comparison_is_said():
    said = " ".join(sentences([way("sgd", 80.0, images=20), way("dirac", diverged=1, images=20)]))
    assert "single seed" in said
    assert "one image is 5.0 points" in said
    assert "dirac diverged" in said
    assert "INT8" not in said
    assert "diverged" in sentences([way("sgd", diverged=1)])[0]


def test_trainings_that_were_cut_short_are_said_to_be():
    said = " ".join(sentences([way("sgd", 80.0), way("dirac", 70.0)], epochs=2, wanted=219))
    assert "trained for 2 of 219 epochs" in said
    assert "epochs" not in " ".join(sentences([way("sgd", 80.0)], epochs=219, wanted=219))
