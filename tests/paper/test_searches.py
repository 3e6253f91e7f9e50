"""Tables 4, 5, 6 and Appendix B: what is said of A0 does not rest on the seeds that chose it, nor on one search."""

import pytest

from made_up import line
from paper import TABLES, Scope
from paper.searches import later_seeds, whose

A0 = "repopt_vgg_a0"


def over_seeds(model, *seeds):
    return [line(model=model, seed=seed, val_accuracy=80) for seed in seeds]


def test_a0_is_judged_by_seeds_that_did_not_choose_it():
    rows = over_seeds(A0, 0, 1, 2, 3, 5)
    assert later_seeds(rows) == rows[3:]
    assert whose(later_seeds(rows)) == "repopt_vgg_a0, seeds 3, 5"


def test_where_there_are_no_later_seeds_or_the_model_is_another_all_count():
    for rows in (over_seeds(A0, 0, 1, 2), over_seeds("repopt_vgg_b1", 0, 3)):
        assert later_seeds(rows) == rows
        assert whose(rows) == rows[0]["model"]
    assert later_seeds([]) == []


# {table: the column that names the scales, those compared, those of the first search}
COMPARED = {
    "table4": ("optimizer", "RepOptimizer, all ones", "RepOptimizer", "RepOptimizer, searched again"),
    "table5": ("source", "imagenette", "cifar100", "searched again"),
    "table6": ("strides", "2 1 2 1 1", "2 2 2 2 2", "searched again"),
    "tableB": ("scales_start", "all 1", "sqrt(2/l)", "searched again"),
}


@pytest.mark.parametrize("table", COMPARED)
def test_a_claim_counts_later_seeds_and_both_searches(table):
    column, compared, first, again = COMPARED[table]
    about = {"target": "imagenette", "init": "authors", "rate": "", "search_accuracy": 50, "dropped_identities": 0}
    accuracies = {compared: (10, 80, 81), first: (99, 90, 91), again: (1, 85, 86)}  # the first of a seed that chose
    rows = [
        line(**about, **{column: name}, model=A0, seed=seed, val_accuracy=value)
        for name, values in accuracies.items()
        for seed, value in zip((0, 3, 4), values, strict=True)
    ]
    claim = TABLES[table].claims(rows)[-1]
    assert (claim.model, str(claim.ours), str(claim.again)) == (
        "repopt_vgg_a0, seeds 3, 4",
        "-10.00 ± 0.71",
        "-5.00 ± 0.71",
    )


def test_a_second_search_is_trained_with_wherever_searches_are_compared_on_imagenette():
    for table, (column, *_, again) in COMPARED.items():
        rows = [row.key for row in TABLES[table].rows(Scope()) if row.key[column] == again]
        assert {row["model"] for row in rows} >= {A0}
        assert {row.get("target", "imagenette") for row in rows} == {"imagenette"}
