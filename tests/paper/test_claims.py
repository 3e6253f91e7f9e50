"""A claim of the paper: ours agrees, is the other way round, or cannot tell."""

import pytest

from made_up import QUICK, line
from paper import TABLES, results_page
from paper.claims import Claim, claims_to_searches
from paper.summaries import Difference
from repopt.files import append_csv


def claim(paper, mean, error=0.5, **kind):
    return Claim(text="it loses", model="nano", paper=paper, ours=Difference(mean=mean, error=error, seeds=3), **kind)


@pytest.mark.parametrize(
    ("paper", "mean", "finding"),
    [
        (-1.4, -1.1, "agrees"),
        (1.4, 1.1, "agrees"),
        (-1.4, -0.9, "cannot tell"),
        (-1.4, 0.9, "cannot tell"),
        (-1.4, 1.1, "the other way round"),
        (1.4, -1.1, "the other way round"),
    ],
)
def test_a_difference_has_the_papers_sign_beyond_two_standard_errors_or_not(paper, mean, finding):
    assert claim(paper, mean).finding == finding


@pytest.mark.parametrize(
    ("mean", "finding"), [(0.9, "not told apart"), (1.1, "differs: ahead"), (-1.1, "differs: behind")]
)
def test_two_methods_are_alike_or_not(mean, finding):
    assert claim(0.06, mean, alike=True).finding == finding


def again(mean):
    return Difference(mean=mean, error=0.5, seeds=3)


@pytest.mark.parametrize("mean", [-0.1, 0.1, 1.2])
def test_what_holds_to_the_scales_of_one_of_two_searches_depends_on_the_search(mean):
    assert claim(-1.4, -1.1, again=again(mean)).finding == "depends on the search"
    assert claim(0.06, -1.1, again=again(mean), alike=True).finding == "depends on the search"


def test_what_holds_to_the_scales_of_both_searches_holds():
    assert claim(-1.4, -1.1, again=again(-1.2)).finding == "agrees"
    assert claim(-1.4, 1.1, again=again(1.2)).finding == "the other way round"
    assert claim(-1.4, -0.1, again=again(0.1)).finding == "cannot tell"
    assert claim(0.06, -1.1, again=again(-1.2), alike=True).finding == "differs: behind"
    assert claim(0.06, -0.1, again=again(0.1), alike=True).finding == "not told apart"


def test_a_second_search_that_was_not_tried_or_diverged_is_no_second_figure():
    rows, first = ([line(seed=seed, val_accuracy=value + seed) for seed in (0, 1)] for value in (70, 80))
    diverged = [*first, line(seed=2, outcome="the loss was not finite")]
    (alone,) = claims_to_searches("it loses", "nano", -1.0, rows, first, [])
    assert (alone.again, alone.finding) == (None, "agrees")
    assert claims_to_searches("it loses", "nano", -1.0, rows, first, diverged) == []
    assert claims_to_searches("it loses", "nano", -1.0, [], first, first) == []


def test_one_seed_tells_nothing():
    assert claim(-1.4, -9.0, error=None).finding == "cannot tell: one run"
    assert claim(0.06, 0.0, error=None, alike=True).finding == "cannot tell: one run"
    one_run = Difference(mean=-9.0, error=None, seeds=1)
    assert claim(-1.4, -1.1, again=one_run).finding == "cannot tell: one run"


def test_the_page_sets_the_papers_claims_beside_ours(tmp_path):
    accuracies = {"all 1": (50, 70, 71), "sqrt(2/l)": (54, 80, 81)}
    rows = [
        line(scales_start=name, model="repopt_vgg_b0", seed=seed, val_accuracy=value, search_accuracy=search)
        for name, (search, *values) in accuracies.items()
        for seed, value in enumerate(values)
    ]
    append_csv(tmp_path / "tableB.csv", rows)
    page = results_page(TABLES, tmp_path)
    beside = page.partition("## Beside the paper")[2].partition("## ")[0]
    itself, scales = (
        "a search that starts at 1 is less accurate itself (both: CIFAR-100)",
        "scales of such a search are worse",
    )
    assert f"| Appendix B: {itself} | -6.83 | repopt_vgg_b0 | -4.00 | cannot tell: one run |\n" in beside
    assert f"| Appendix B: {scales} | -0.88 | repopt_vgg_b0 | -10.00 ± 0.71 | agrees |\n" in beside
    assert "## Beside the paper" not in results_page(TABLES, tmp_path / "nowhere")


def test_every_claim_of_table_4_is_about_one_of_its_rows():
    names = {row.key["optimizer"] for row in TABLES["table4"].rows(QUICK)}
    rows = [
        line(optimizer=name, model="repopt_vgg_b1", init="authors", rate="", seed=seed, val_accuracy=value)
        for name in names
        for seed, value in enumerate((80, 81))
    ]
    claims = TABLES["table4"].claims(rows)
    assert len(claims) == 7
    assert {each.finding for each in claims if not each.alike} == {"cannot tell"}
    assert [each.text for each in claims if each.alike] == [
        "Table 2: RepVGG does as well (ours: at its best learning rate of those tried, RepOpt at the recipe's)"
    ]
