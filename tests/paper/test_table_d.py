"""Appendix D: constants of two origins beside real fusion layers, and plain SGD with its better init."""

from made_up import line
from paper import TABLES


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
    assert shown[-1] == (
        "With our scales, to the authors': +4.00 ± 1.41 points. "
        "RepOptimizer to plain SGD: searched +8.00 ± 1.41, authors +4.00 ± 1.41."
    )
