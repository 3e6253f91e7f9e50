"""The equality, over the table of cases: every rule on three branch sets, and every branch set under three rules."""

import pytest

from repopt.verification.cases import (
    BRANCH_SETS,
    CLIPPED_RULES,
    CLOSED_RULES,
    INEXACT_RULES,
    MATRIX_RULES,
    SGD_RULES,
    STOCK_RULES,
    run_matrix,
    run_row,
)
from side_by_side import EXACT, STEPS

RULES = {**SGD_RULES, **STOCK_RULES, **CLOSED_RULES, **CLIPPED_RULES}
PAIRS = dict.fromkeys(
    [(rule, branch_set) for rule in RULES for branch_set in ("RepVGG", "finer groups", "linear")]
    + [(rule, branch_set) for rule in ("SGD, nesterov, L2", "AdamW", "closed AdamW, eps") for branch_set in BRANCH_SETS]
)


@pytest.mark.parametrize(("rule", "branch_set"), PAIRS)
def test_block_and_operator_stay_equal(rule, branch_set):
    report = run_row(rule, RULES[rule], branch_set, STEPS).report
    assert report.exact
    assert (report.route == "closed") == ("closed" in rule)
    assert report.worst <= EXACT
    assert report.passed
    assert report.differences[0].moved > (1e-4 if "clipped" in rule else 0.01)


@pytest.mark.parametrize("rule", MATRIX_RULES)
def test_rules_for_matrices_stay_equal_on_two_linear_branches(rule):
    report = run_row(rule, MATRIX_RULES[rule], "two linear", STEPS).report
    assert report.worst <= EXACT
    assert report.differences[0].moved > 0.01


def test_the_matrix_covers_every_branch_set_and_every_rule():
    rows = list(run_matrix(steps=2))
    assert {row.branch_set for row in rows} == set(BRANCH_SETS)
    assert {row.rule for row in rows} == {*RULES, *MATRIX_RULES, *INEXACT_RULES}
    assert all(row.passed for row in rows)
    assert {row.rule for row in rows if not row.report.exact} == set(INEXACT_RULES)
    assert not any(row.report.passed for row in rows if not row.report.exact)
