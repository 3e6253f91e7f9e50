"""Other constants, and other searches for them."""

import json

from made_up import QUICK, line
from paper import TABLES, Workshop, reproduce


def test_a_search_is_repeated_with_another_seed_and_nothing_else(tmp_path):
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    for only in ("*, searched, 0", "*, searched again, 0"):
        reproduce("constants", QUICK, workshop, tmp_path, only=only, tell=lambda text: None)
    searches = [json.loads(path.read_text()) for path in workshop.folder.glob("*-search-*/recipe.json")]
    first, again = sorted(searches, key=lambda recipe: recipe["seed"])
    assert (first["seed"], again["seed"]) == (QUICK.search_seed, QUICK.search_seed + 1)
    assert {**first, "seed": 0} == {**again, "seed": 0}


def lines_of(model, **constants):
    return [
        line(model=model, constants=source.replace("_", " "), seed=seed, val_accuracy=value)
        for source, values in constants.items()
        for seed, value in enumerate(values)
    ]


def test_constants_are_compared_with_those_of_either_search():
    part = TABLES["constants"].part(
        lines_of("repopt_vgg_a0", searched=(90, 92), searched_again=(86, 88), ones=(85, 87))
    )
    assert "| repopt_vgg_a0 | ones | 2 | 86.00 ± 1.41 | -5.00 ± 1.41 | -1.00 ± 1.41 |" in part
    behind = "More than two standard errors behind `searched`: searched again; ones."
    assert f"repopt_vgg_a0: {behind}" in part
    assert (
        "repopt_vgg_a0: More than two standard errors ahead of `searched again`: searched. Not told apart from "
        "`searched again`: ones."
    ) in part


def test_what_a_second_search_would_change_is_said_in_short():
    b1 = lines_of("repopt_vgg_b1", searched=(90, 92), authors=(89, 91))
    a0 = lines_of("repopt_vgg_a0", searched=(80, 82), searched_again=(78, 80))
    assert TABLES["constants"].verdict(b1) == (
        "B1 with our scales against the authors' released ones: +1.00 ± 1.41 points."
    )
    assert (
        TABLES["constants"]
        .verdict([*b1, *a0])
        .endswith(" A second search's scales against the first's: repopt_vgg_a0 -2.00 ± 1.41 points.")
    )
    assert TABLES["constants"].verdict(a0) == (
        "A second search's scales against the first's: repopt_vgg_a0 -2.00 ± 1.41 points."
    )
    assert TABLES["constants"].verdict(a0[:2]) is None


def test_words_about_a0_leave_out_what_was_not_trained_with_later_seeds():
    rows = lines_of("repopt_vgg_a0", searched=(90, 92, 91, 80, 82), searched_again=(80, 82, 81, 80, 82), ones=(85, 87))
    told = "\n".join(TABLES["constants"].part(rows))
    assert "repopt_vgg_a0, seeds 3, 4: Not told apart from `searched`: searched again.\n" in told
    assert "| repopt_vgg_a0 | ones | 2 |" in told
