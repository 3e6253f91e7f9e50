"""The page says what the CSV files say, and nothing else."""

import pytest

from made_up import line, squares
from paper import TABLES, results_page
from repopt.files import append_csv


def write(results, *accuracies):
    """Table D with made-up numbers."""
    (results / "tableD.csv").unlink(missing_ok=True)
    methods = {"repvgg": "", "repopt": "authors"}
    append_csv(
        results / "tableD.csv",
        [
            line(method=method, scales=scales, init="authors", val_accuracy=value)
            for (method, scales), value in zip(methods.items(), accuracies, strict=True)
        ],
    )
    return results_page(TABLES, results)


def test_without_results_there_is_no_table_and_all_names_are_listed(tmp_path):
    page = results_page(TABLES, tmp_path)
    assert page == results_page(TABLES, tmp_path / "nowhere")
    assert "|" not in page
    assert f"\n## Not run yet\n\n{', '.join(f'`{name}`' for name in TABLES)}.\n" in page


def test_a_number_of_a_file_is_a_number_of_the_page(tmp_path):
    before, after = write(tmp_path, 66.49, 66.75), write(tmp_path, 66.49, 65.5)
    assert "| RepOpt-GhostNet, RepOptimizer | authors | torch's | 1 | 66.75 | +0.26 | 66.51 |" in before
    assert "| RepOpt-GhostNet, RepOptimizer | authors | torch's | 1 | 65.50 | -0.99 | 66.51 |" in after
    assert before.replace("66.75 | +0.26", "65.50 | -0.99") == after


def test_tables_stand_in_their_order_and_those_that_are_missing_at_the_end(tmp_path):
    page = write(tmp_path, 60, 61)
    assert "`tableD`" not in page.partition("## Not run yet")[2]
    assert page.index("## Appendix D: GhostNet") < page.index("## Not run yet")
    tables = {"squares": squares(), "tableD": TABLES["tableD"]}
    append_csv(tmp_path / "squares.csv", [{"number": 3, "word": "three", "seed": 0, "square": 9}])
    page = results_page(tables, tmp_path)
    assert "\n## Squares\n\n`repopt reproduce squares`. Still to be measured: 2 of 3 rows.\n\n3: 9\n\n## App" in page
    assert "Not run yet" not in page


@pytest.mark.parametrize("other", ["other.csv", "tableD.txt"])
def test_other_files_are_not_on_the_page(tmp_path, other):
    (tmp_path / other).write_text("a,b\n1,2\n")
    assert results_page(TABLES, tmp_path) == results_page(TABLES, tmp_path / "nowhere")
