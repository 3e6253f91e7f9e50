"""The better rate, the best way, the noise, and what INT8 costs."""

import math
from dataclasses import replace

import pytest

from made_up import measured_way as way
from repopt.compare.verdict import best_rate, is_noise, next_rate, ranked, sentences, standard_error


@pytest.mark.parametrize(
    ("accuracies", "rate"),
    [
        ({0.1: 80.0, 0.3: 81.0}, 0.3),
        ({0.1: 82.0, 0.3: 81.0}, 0.1),
        ({0.3: 81.0, 0.1: 81.0}, 0.1),
        ({0.03: 81.0, 0.1: 81.0, 0.3: 70.0}, 0.1),
        ({0.03: 70.0, 0.1: 81.0, 0.3: 81.0}, 0.1),
        ({0.03: 25.0, 0.1: 25.0, 0.3: 25.0}, 0.1),
        ({0.1: 10.0, 0.3: None}, 0.1),
        ({0.1: None, 0.3: 0.0}, 0.3),
        ({0.3: None, 0.1: None}, 0.1),
    ],
)
def test_the_better_rate_is_chosen_and_a_training_that_diverged_is_the_worst(accuracies, rate):
    assert best_rate(accuracies) == rate


@pytest.mark.parametrize(
    ("accuracies", "rate"),
    [
        ({0.03: 82.0, 0.1: 81.0, 0.3: None}, 0.01),
        ({0.03: 80.0, 0.1: 81.0, 0.3: 82.0}, 1.0),
        ({0.03: 80.0, 0.1: 81.0, 0.3: 82.0, 1.0: 83.0}, 3.0),
        ({0.03: 80.0, 0.1: 81.0, 0.3: 82.0, 1.0: 83.0, 3.0: 84.0}, None),  # no more to try
        ({0.03: 80.0, 0.1: 83.0, 0.3: 82.0}, None),
        ({0.03: 80.0, 0.1: 81.0, 0.3: 82.0, 1.0: None}, None),
        ({0.03: 25.0, 0.1: 25.0, 0.3: 24.0}, None),  # equal, as at chance
        ({0.03: None, 0.1: None, 0.3: None}, 0.01),
        ({0.1: 80.0}, 0.03),
    ],
)
def test_the_search_for_a_rate_goes_on_beyond_an_edge_that_is_best(accuracies, rate):
    assert next_rate(accuracies, further=(0.003, 0.01, 0.03, 1.0, 3.0)) == rate


def test_a_best_rate_at_the_edge_of_those_tried_is_said():
    low, high, one = (replace(way(name, 80.0, 81.0), lr=rate) for name, rate in (("a", 0.1), ("b", 0.3), ("c", 0.1)))
    inside = replace(way("d", 80.0, 81.0), rates={0.1: 70.0, 0.3: 80.0, 1.0: 75.0}, lr=0.3)
    low, high = replace(low, rates={0.1: 80.0, 0.3: 70.0}), replace(high, rates={0.1: 70.0, 0.3: 80.0})
    tied = replace(way("e", 80.0), rates={0.1: 80.0, 0.3: 80.0}, lr=0.1)
    said = " ".join(sentences([low, high, one, inside, tied], guessing=10))
    assert "Best at the lowest learning rate tried, and perhaps better at a lower one: a (0.1)." in said
    assert "Best at the highest learning rate tried, and perhaps better at a higher one: b (0.3)." in said


def test_the_error_of_a_mean_is_its_deviation_over_the_root_of_the_seeds():
    assert standard_error([80.0, 82.0, 84.0], images=10_000) == pytest.approx(2 / math.sqrt(3))


def test_seeds_that_agree_by_chance_differ_by_the_error_of_their_images():
    assert standard_error([80.0, 80.0], images=10_000) == pytest.approx(0.4 / math.sqrt(2))
    assert standard_error([80.0], images=10_000) == pytest.approx(0.4)
    assert is_noise(way("best", 80.0, 80.0), way("other", 79.9, 79.9))


@pytest.mark.parametrize(("accuracy", "images"), [(90.0, 400), (100.0, 20), (0.0, 20)])
def test_a_single_seed_has_the_error_of_its_images(accuracy, images):
    assert 0 < standard_error([accuracy], images) < 100 / math.sqrt(images)


def test_the_best_comes_first_and_a_way_that_diverged_has_no_place():
    order = ranked([way("a", 70.0), way("b", 90.0), way("c", diverged=1)])
    assert [each.name for each in order] == ["b", "a"]


def test_seeds_that_did_not_diverge_make_no_way_the_best():
    lucky, other = way("lucky", 95.0, 96.0, diverged=1), way("other", 90.0, 91.0, 92.0)
    assert ranked([lucky, other]) == [other]
    assert ranked([lucky]) == [lucky]


def test_of_equals_the_better_one_in_int8_comes_first():
    order = ranked([way("a", 90.0, int8=(85.0,)), way("b", 90.0, int8=(89.0,)), way("c", 91.0, int8=(70.0,))])
    assert [each.name for each in order] == ["c", "b", "a"]


def test_noise_is_two_standard_errors_of_the_difference():
    best, near, far = way("best", 89.0, 91.0), way("near", 87.5, 88.5), way("far", 86.0, 86.2)
    assert is_noise(best, near)
    assert not is_noise(best, far)


def test_a_network_without_int8_is_named_beside_those_that_have_it():
    ways = [way("sgd", 80.0, int8=(79.0,)), way("repopt", 90.0), way("dirac", 89.0, int8=(88.5,))]
    said = " ".join(sentences(ways, guessing=10))
    assert "INT8 costs, in points: dirac 0.50 and sgd 1.00. Best in INT8: dirac" in said
    assert "INT8 of repopt is missing." in said
    assert "INT8" not in " ".join(sentences([way("sgd", 80.0), way("repopt", 90.0)], guessing=10))


def test_the_words_name_the_best_the_noise_and_the_cost_of_int8():
    ways = [way("sgd", 80.0, 80.2, int8=(79.0, 79.2)), way("repopt", 90.0, 92.0, int8=(89.5, 91.5))]
    said = " ".join(sentences([*ways, way("dirac", 89.0, 91.0, int8=(89.9, 91.9))], guessing=10))
    assert "Best: repopt" in said
    assert "of the best: dirac." in said
    assert "sgd by 10.90" in said
    assert "sgd 1.00" in said
    assert "Best in INT8: dirac" in said


def test_what_weakens_a_comparison_is_said():
    said = " ".join(sentences([way("sgd", 80.0, images=20), way("dirac", diverged=1, images=20)], guessing=10))
    assert "single seed" in said
    assert "one image is 5.0 points" in said
    assert "dirac diverged" in said
    assert "INT8" not in said
    assert "diverged" in sentences([way("sgd", diverged=1)], guessing=10)[0]


def test_trainings_that_were_cut_short_are_said_to_be():
    said = " ".join(sentences([way("sgd", 80.0), way("dirac", 70.0)], guessing=10, epochs=2, wanted=219))
    assert "trained for 2 of 219 epochs" in said
    assert "epochs" not in " ".join(sentences([way("sgd", 80.0)], guessing=10, epochs=219, wanted=219))


def test_guessing_is_not_praised():
    ways, common = [way("sgd", 34.0), way("dirac", 33.0)], "than always naming the most common class"
    assert f"That is hardly better {common} (33.33)" in sentences(ways, guessing=100 / 3)[1]
    assert f"That is no better {common} (34.00)" in sentences(ways, guessing=34.0)[1]
    assert common not in " ".join(sentences(ways, guessing=10))


def test_one_validation_image_is_one_image():
    said = " ".join(sentences([way("sgd", 80.0, images=1)], guessing=10))
    assert "± of a single seed is the error of 1 image:" in said
    assert "With 1 validation image, one image is 100.0 points." in said
