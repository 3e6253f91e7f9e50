"""A claim of the paper: ours agrees, is smaller or the opposite, or cannot tell."""

import pytest

from paper import studies, table4
from paper.claims import Claim, read_claims
from paper.pages import RESULTS, gap, table
from paper.tables import table_named
from paper.view import Gap

CLAIMS = read_claims()


def found(paper, *means, error=0.5, alike=False):
    claim = Claim(text="it loses", paper=(70 + paper, 70), table="tableB", ours="a", to="b", alike=alike)
    return claim.finding([Gap(mean=mean, error=error) for mean in means])


@pytest.mark.parametrize(
    ("paper", "mean", "words"),
    [
        (-1.4, -1.1, "agrees"),
        (1.4, 1.1, "agrees"),
        (-1.4, -0.9, "cannot tell"),
        (-1.4, -0.5, "cannot tell"),
        (-1.4, -0.3, "smaller, if any"),
        (-1.4, 0.9, "smaller, if any"),
        (1.4, 0.3, "smaller, if any"),
        (-1.4, 1.1, "opposite"),
        (1.4, -1.1, "opposite"),
    ],
)
def test_a_difference_has_the_papers_sign_beyond_two_standard_errors_or_not(paper, mean, words):
    assert found(paper, mean) == words


@pytest.mark.parametrize(
    ("mean", "words"), [(0.9, "no clear difference"), (1.1, "differs: ahead"), (-1.1, "differs: behind")]
)
def test_two_methods_are_alike_or_not(mean, words):
    assert found(0.06, mean, alike=True) == words


@pytest.mark.parametrize("mean", [-0.1, 0.1, 1.2])
def test_what_holds_for_one_of_two_searches_depends_on_the_search(mean):
    assert found(-1.4, -1.1, mean) == found(0.06, -1.1, mean, alike=True) == "depends on the search"


def test_what_holds_for_both_searches_holds():
    assert found(-1.4, -1.1, -1.2) == "agrees"
    assert found(-1.4, 1.1, 1.2) == "opposite"
    assert found(-1.4, -0.1, 0.1) == "smaller, if any"
    assert found(-1.4, -0.1, -0.9) == found(-1.4, -0.9, -0.1) == "cannot tell"
    assert found(0.06, -1.1, -1.2, alike=True) == "differs: behind"


def test_one_run_says_nothing():
    assert found(-1.4, -9.0, error=None) == found(0.06, 0.0, error=None, alike=True) == "cannot tell: one run"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text[:60])
def test_every_claim_is_about_rows_that_were_measured(claim):
    for to in filter(None, (claim.to, claim.again)):
        assert "±" in gap(RESULTS, claim.table, claim.ours, to, claim.column, **claim.where) or isinstance(
            claim.where.get("seed"), str
        )


def test_claims_about_a0s_scales_rest_on_seeds_that_did_not_choose_it():
    for claim in CLAIMS:
        if claim.where["model"] == "repopt_vgg_a0" and claim.where.get("target") != "cifar100":
            assert set(claim.where["seed"]) <= {"3", "4", "5"}
            assert "seed" in table_named(claim.table).keys


def test_the_papers_figures_of_a_claim_are_those_of_its_table():
    """Where a table declares what the paper has."""
    for claim in CLAIMS:
        if claim.table == "table4":
            assert tuple(claim.paper) == (table4.PAPER[claim.ours], table4.PAPER[claim.to])
        if claim.table in ("table6", "tableB"):
            paper = (studies.STRIDES if claim.table == "table6" else studies.STARTS)[claim.ours]
            assert claim.paper[0] == paper[1 + (claim.column == "val_accuracy")]


def test_the_table_of_claims_has_a_line_for_each():
    shown = table(RESULTS, "claims").splitlines()
    assert len(shown) == 2 + len(CLAIMS)
    assert "| Table 4: plain SGD is behind a RepOptimizer | -1.56 | repopt_vgg_a0, seeds 3, 4, 5 | " in "\n".join(shown)
