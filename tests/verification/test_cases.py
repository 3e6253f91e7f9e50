from repopt.verification.cases import (
    BRANCH_SETS,
    CLIPPED_RULES,
    CLOSED_RULES,
    EXACT_TO,
    INEXACT_RULES,
    MATRIX_RULES,
    SGD_RULES,
    STOCK_RULES,
    run_matrix,
)


def test_the_matrix_covers_every_branch_set_and_every_rule():
    rows = list(run_matrix(steps=2))
    assert {row.branch_set for row in rows} == set(BRANCH_SETS)
    assert {row.rule for row in rows} == {
        *SGD_RULES,
        *STOCK_RULES,
        *CLOSED_RULES,
        *CLIPPED_RULES,
        *MATRIX_RULES,
        *INEXACT_RULES,
    }
    assert all(row.passed for row in rows)
    assert {row.rule for row in rows if not row.report.exact} == set(INEXACT_RULES)
    assert all(row.report.worst > EXACT_TO for row in rows if not row.report.exact)
