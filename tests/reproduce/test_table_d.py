"""Appendix D: constants of three origins beside real fusion layers, and plain SGD with its better init."""

import json

from repopt.reproduce import TABLES, reproduce
from repopt.reproduce.workshop import Workshop
from reproduce.made_up import QUICK, line


def accuracies(method, figures, *, scales="", init="authors"):
    return [
        line(method=method, scales=scales, init=init, seed=seed, val_accuracy=figure)
        for seed, figure in enumerate(figures)
    ]


def test_each_origin_of_the_scales_is_compared_with_the_real_layers():
    shown = TABLES["tableD"].part(
        [
            *accuracies("repvgg", (80.0, 82.0)),
            *accuracies("repopt", (83.0, 85.0), scales="searched"),
            *accuracies("repopt", (79.0, 81.0), scales="authors"),
            *accuracies("sgd", (70.0, 72.0)),
            *accuracies("sgd", (75.0, 77.0), init="paper"),
        ]
    )
    assert "| RepOpt-GhostNet, RepOptimizer | searched | torch's | 2 | 84.00 ± 1.41 | +3.00 ± 1.41 |  |" in shown
    assert "| RepOpt-GhostNet, RepOptimizer | authors | torch's | 2 | 80.00 ± 1.41 | -1.00 ± 1.41 | 66.51 |" in shown
    assert "| RepOpt-GhostNet, SGD |  | He's | 2 | 76.00 ± 1.41 | -5.00 ± 1.41 |  |" in shown
    assert not any("71.00" in row for row in shown)


def test_the_two_searches_differ_in_the_decay_of_identities_alone(tmp_path):
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    reproduce("tableD", QUICK, workshop, tmp_path, only="repopt*", tell=lambda text: None)
    searches = [json.loads(path.read_text()) for path in workshop.folder.glob("*-search-*/recipe.json")]
    one, other = searches
    assert {name for name in one if one[name] != other[name]} == {"decay_identity"}
