"""Other constants, and other searches for them."""

import json

from repopt.reproduce import Workshop, reproduce
from reproduce.made_up import QUICK


def test_a_search_is_repeated_with_another_seed_and_nothing_else(tmp_path):
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    for only in ("*, searched, 0", "*, searched again, 0"):
        reproduce("constants", QUICK, workshop, tmp_path, only=only, tell=lambda text: None)
    searches = [json.loads(path.read_text()) for path in workshop.folder.glob("*-search-*/recipe.json")]
    first, again = sorted(searches, key=lambda recipe: recipe["seed"])
    assert (first["seed"], again["seed"]) == (QUICK.search_seed, QUICK.search_seed + 1)
    assert {**first, "seed": 0} == {**again, "seed": 0}
