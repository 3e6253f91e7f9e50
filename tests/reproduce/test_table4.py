"""Table 4: a baseline is its best, and every other row is compared with the full method."""

from repopt.reproduce import TABLES, Scope
from reproduce.made_up import line


def part(*rows):
    lines = [
        line(optimizer=name, model="repopt_vgg_b1", init=init, rate=rate, seed=seed, val_accuracy=value)
        for name, init, rate, seed, value in rows
    ]
    return TABLES["table4"].part(lines)


FULL = [("RepOptimizer", "authors", "", 0, 90), ("RepOptimizer", "authors", "", 1, 92)]


def test_a_baseline_has_the_better_of_its_inits_over_all_seeds():
    sgd = [("SGD", "authors", "", 0, 89), ("SGD", "authors", "", 1, 80)]
    sgd += [("SGD", "paper", "", 0, 86), ("SGD", "paper", "", 1, 87)]
    assert "| SGD | He's | 2 | 86.50 ± 0.71 | -4.50 ± 0.50 |  | 76.91 | -1.56 |" in part(*sgd, *FULL)
    assert "| RepOptimizer | torch's | 2 | 91.00 ± 1.41 |  | +4.50 ± 0.50 | 78.47 |  |" in part(*sgd, *FULL)


def test_an_adaptive_baseline_has_the_best_of_its_learning_rates():
    adam = [("Adam", "paper", rate, 0, value) for rate, value in ((0.0003, 70), (0.001, 75), (0.003, 71))]
    assert "| Adam | He's, lr 0.001 | 1 | 75.00 | -15.00 |  | 76.14 | -2.33 |" in part(*adam, *FULL)


def test_a_best_learning_rate_at_the_edge_says_so():
    adam = [("Adam", "authors", rate, 0, value) for rate, value in ((0.003, 70), (0.01, 75))]
    assert any("| Adam | torch's, lr 0.01 (at the edge of what is tried) | 1 | 75.00 |" in row for row in part(*adam))


def test_the_order_is_that_of_the_means_and_of_what_was_measured():
    ones, start = (
        ("RepOptimizer, all ones", "authors", "", 0, 95),
        ("RepOptimizer, as the search starts", "paper", "", 0, 60),
    )
    assert part(*FULL, ones, start)[-1] == (
        "Best to worst here: all ones; RepOptimizer; as the search starts. In the paper: RepOptimizer; as the search "
        "starts; all ones."
    )


def test_only_grids_of_learning_rates_are_searched_with_one_seed():
    seeds = {}
    for row in TABLES["table4"].rows(Scope(quick=True, seeds=(0, 1, 2))):
        seeds.setdefault(row.key["optimizer"], set()).add(row.key["seed"])
    grids = {"RMSprop", "Adam", "AdamW", "Adafactor"}
    assert seeds == {name: {0} if name in grids else {0, 1, 2} for name in seeds}
    assert seeds.keys() > grids
