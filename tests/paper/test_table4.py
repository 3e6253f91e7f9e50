"""Table 4: a baseline is its best, and every other row is compared with the full method."""

from made_up import line
from paper import TABLES, Scope


def part(*rows):
    lines = [
        line(optimizer=name, model="repopt_vgg_b1", init=init, rate=rate, lr=rate or 0.1, seed=seed, val_accuracy=value)
        for name, init, rate, seed, value in rows
    ]
    return TABLES["table4"].part(lines)


FULL = [("RepOptimizer", "authors", "", 0, 90), ("RepOptimizer", "authors", "", 1, 92)]


def test_a_baseline_has_the_better_of_its_inits_over_all_seeds():
    sgd = [("SGD", "authors", "", 0, 89), ("SGD", "authors", "", 1, 80)]
    sgd += [("SGD", "paper", "", 0, 86), ("SGD", "paper", "", 1, 87)]
    tried = "torch's and He's; lr 0.1"
    assert f"| SGD | He's | {tried} | 2 | 86.50 ± 0.71 | -4.50 ± 1.12 |  | 76.91 | -1.56 |" in part(*sgd, *FULL)
    assert "| RepOptimizer | torch's | torch's; lr 0.1 | 2 | 91.00 ± 1.41 |  | +4.50 ± 1.12 | 78.47 |  |" in part(
        *sgd, *FULL
    )


def test_an_adaptive_baseline_has_the_best_of_its_learning_rates_and_says_which_were_tried():
    adam = [("Adam", "paper", rate, 0, value) for rate, value in ((0.0003, 70), (0.003, 71), (0.001, 75))]
    found = part(*adam, *FULL)
    assert "| Adam | He's, lr 0.001 | He's; lr 0.0003, 0.001, 0.003 | 1 | 75.00 | -16.00 | 76.14 | -2.33 |" in found


def test_a_best_rate_at_the_edge_of_those_tried_with_its_init_is_told():
    adam = [("Adam", "paper", rate, 0, 70) for rate in (0.0003, 0.001, 0.003)] + [("Adam", "authors", 0.001, 0, 75)]
    found = part(*adam, ("Adam", "authors", 0.003, 0, 74), *FULL)
    tried = "He's and torch's; lr 0.0003, 0.001, 0.003, the lowest of torch's is best"
    assert f"| Adam | torch's, lr 0.001 | {tried} | 1 | 75.00 | -16.00 | 76.14 | -2.33 |" in found


def test_an_adaptive_optimizer_has_torchs_init_at_its_two_highest_rates_alone():
    tried = {}
    for row in TABLES["table4"].rows(Scope(quick=True, seeds=(0,))):
        tried.setdefault((row.key["optimizer"], row.key["init"]), []).append(row.key["rate"])
    for name in ("RMSprop", "Adam", "AdamW", "Adafactor"):
        assert len(tried[name, "paper"]) == 4
        assert tried[name, "authors"] == sorted(tried[name, "paper"])[-2:]
    assert tried["SGD", "authors"] == tried["SGD", "paper"]


def test_ablations_are_told_apart_from_the_whole_method_or_not():
    ones = [("RepOptimizer, all ones", "authors", "", seed, value) for seed, value in enumerate((91, 92))]
    start = [("RepOptimizer, as the search starts", "authors", "", seed, value) for seed, value in enumerate((60, 61))]
    assert part(*FULL, *ones, *start)[-1] == (
        "More than two standard errors behind the whole method: as the search starts. Not told apart from the whole "
        "method: all ones. The paper's order, best to worst: the whole method, as the search starts, all ones."
    )


def test_what_the_two_rules_are_worth_is_said_in_short():
    rows = [("RepOptimizer, initialization unchanged", "paper", "", seed, 80) for seed in (0, 1)]
    rows += [("SGD", "paper", "", seed, 79) for seed in (0, 1)]
    rows += [("SGD, RepVGG", "authors", rate, seed, 87 + 10 * rate) for rate in (0.05, 0.2) for seed in (0, 1)]
    lines = [
        line(optimizer=name, model="repopt_vgg_b1", init=init, rate=rate, seed=seed, val_accuracy=value)
        for name, init, rate, seed, value in (*FULL, *rows)
    ]
    assert TABLES["table4"].verdict(lines) == (
        "RepOptimizer against plain SGD at its best, repopt_vgg_b1: +12.00 ± 1.00 points. Against RepVGG at its "
        "best: +2.00 ± 1.00. Against the whole method: with the initialization unchanged -11.00 ± 1.00."
    )


def test_only_grids_of_learning_rates_are_searched_with_one_seed():
    seeds = {}
    for row in TABLES["table4"].rows(Scope(quick=True, seeds=(0, 1, 2))):
        seeds.setdefault(row.key["optimizer"], set()).add(row.key["seed"])
    grids = {"RMSprop", "Adam", "AdamW", "Adafactor"}
    assert seeds == {name: {0} if name in grids else {0, 1, 2} for name in seeds}
    assert seeds.keys() > grids


def test_each_model_has_its_own_rows_and_claims():
    rows = [
        line(optimizer=name, model=model, init="authors", rate="", lr=0.1, seed=seed, val_accuracy=value)
        for model, losses in (("repopt_vgg_b1", 0), ("repopt_vgg_a0", 5))
        for name, values in {"RepOptimizer": (90, 92), "RepOptimizer, all ones": (90 - losses, 92 - losses)}.items()
        for seed, value in enumerate(values)
    ]
    found = "\n".join(TABLES["table4"].part(rows))
    b1, a0 = found.split("repopt_vgg_a0:\n")
    assert "| RepOptimizer, all ones | torch's | torch's; lr 0.1 | 2 | 91.00 ± 1.41 | +0.00 ± 1.41 |" in b1
    assert "| RepOptimizer, all ones | torch's | torch's; lr 0.1 | 2 | 86.00 ± 1.41 | -5.00 ± 1.41 |" in a0
    told = [(claim.model, claim.finding) for claim in TABLES["table4"].claims(rows)]
    assert told == [("repopt_vgg_b1", "cannot tell"), ("repopt_vgg_a0", "agrees")]


def test_other_constants_are_behind_only_if_they_are_to_both_searches():
    whole = {"RepOptimizer": (90, 92), "RepOptimizer, searched again": (86, 88), "RepOptimizer, all ones": (85, 87)}
    rows = [
        line(optimizer=name, model="repopt_vgg_a0", init="authors", rate="", lr=0.1, seed=seed, val_accuracy=value)
        for name, values in {**whole, "RepOptimizer, mean over channels": (85, 87), "SGD": (75, 77)}.items()
        for seed, value in enumerate(values)
    ]
    assert (
        "| RepOptimizer, searched again | torch's | torch's; lr 0.1 | 2 | 87.00 ± 1.41 | -4.00 ± 1.41 |"
        in "\n".join(TABLES["table4"].part(rows))
    )
    told = {claim.text: (str(claim.again), claim.finding) for claim in TABLES["table4"].claims(rows)}
    assert told == {
        "Table 4: plain SGD is behind a RepOptimizer": ("-11.00 ± 1.41", "agrees"),
        "Table 4: with all-ones constants it loses": ("-1.00 ± 1.41", "depends on the search"),
        "Table 4: with constants averaged over channels it loses": ("None", "agrees"),  # of the first search
    }
