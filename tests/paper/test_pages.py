"""Placeholders are filled from the rows, whatever stood there before, and nothing else changes."""

import re
import sys

import pytest

from made_up import line
from paper.commands import main
from paper.pages import ROOT, fill
from repopt.files import append_csv

PAGE = """Ours is <!--= accuracy("tableD", {"method": "repopt"}) -->old<!--/-->, which is
<!-- a remark --> more by <!--= gap("tableD", {"method": "repopt"}, {"method": "repvgg"}) --><!--/--> points
or <!--= ratio("tableD", "val_accuracy", {"method": "repopt"}, {"method": "repvgg"}) --><!--/--> times, in
<!--= value("tableD", "epochs", method="repopt") --><!--/--> epochs.

<!--= table("tableD", method="repopt") -->
old
lines
<!--/-->
"""


@pytest.fixture
def results(tmp_path):
    accuracies = {"repvgg": (80, 82), "repopt": (89, 91)}
    append_csv(
        tmp_path / "tableD.csv",
        [
            line(method=method, scales="authors" if method == "repopt" else "", init="authors", seed=seed)
            | {"val_accuracy": str(value)}
            for method, values in accuracies.items()
            for seed, value in enumerate(values)
        ],
    )
    return tmp_path


def test_what_stands_between_the_marks_comes_from_the_rows(results):
    page = fill(PAGE, results)
    assert '-->90.00 ± 1.41<!--/-->, which is\n<!-- a remark --> more by <!--= gap("tableD"' in page
    assert "-->+9.00 ± 1.41<!--/--> points" in page
    assert "-->1.11<!--/--> times" in page
    assert "-->40<!--/--> epochs." in page
    assert "\n| RepOpt-GhostNet, RepOptimizer | authors | torch's | 2 | 90.00 ± 1.41 | 66.51 |\n<!--/-->\n" in page
    assert "old" not in page


def test_what_the_rows_hold_is_text_on_the_page(tmp_path):
    """Markdown lets HTML through, and a run's name is a folder's."""
    row = {"layer": "stage3", "kernel": "3x3 kernel", "run": "<img src=x onerror=alert(1)>", "commit": "<!--/-->"}
    append_csv(tmp_path / "kernels.csv", [row])
    page = fill('<!--= value("kernels", "run") --><!--/-->, <!--= value("kernels", "commit") --><!--/-->', tmp_path)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img" not in page
    assert fill(page, tmp_path) == page


def test_a_filled_page_stays_what_it_is(results):
    assert fill(fill(PAGE, results), results) == fill(PAGE, results)
    assert fill("no placeholder <!-- at all -->", results) == "no placeholder <!-- at all -->"


def test_without_rows_a_page_says_that_nothing_was_measured(tmp_path):
    assert fill(PAGE, tmp_path).count("(not measured yet)") == 5


@pytest.mark.parametrize(
    "expression",
    [
        "gap",
        "table('nowhere')",
        "open('file')",
        "table(name)",
        "table('tableD').strip()",
        "table('tableD', no='a')",
        "((",
    ],
)
def test_a_placeholder_that_is_no_call_over_rows_is_named(expression, results):
    with pytest.raises(ValueError, match="cannot be filled") as error:
        fill(f"<!--= {expression} --><!--/-->", results)
    assert expression in str(error.value)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one page, one of whose numbers is wrong, and the page as it should be."""
    monkeypatch.setattr("paper.pages.ROOT", tmp_path)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    page = (ROOT / "docs" / "performance.md").read_text()
    (tmp_path / "docs" / "performance.md").write_text(re.sub(r"\d\.\d\d", "7.77", page))
    (tmp_path / "README.md").write_text("nothing to fill")
    return tmp_path, page


def test_a_difference_is_between_two_lines_of_a_table():
    """Rows of several settings are not averaged without a word."""
    with pytest.raises(ValueError, match=r"names several lines of 'where': say which, by model, share, epochs, way"):
        fill('<!--= gap("where", "RepVGG", "Dirac", model="repopt_vgg_b0", epochs="40") --><!--/-->')


def test_docs_fills_the_pages_and_draws_the_figures(checkout, capsys):
    root, page = checkout
    with pytest.raises(SystemExit, match="0"):
        main(["docs"])
    assert (root / "docs" / "performance.md").read_text() == page
    assert capsys.readouterr().out == f"page: {root / 'docs' / 'performance.md'}\n"
    assert {path.name for path in (root / "docs" / "figures").iterdir()} == {
        path.name for path in (ROOT / "docs" / "figures").iterdir()
    }


def test_pages_are_filled_without_matplotlib(checkout, capsys, monkeypatch):
    root, page = checkout
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="0"):
        main(["docs"])
    assert (root / "docs" / "performance.md").read_text() == page
    assert "figures are not drawn again: " in capsys.readouterr().out
