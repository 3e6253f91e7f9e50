"""Every Python snippet of the README and of the docs runs, those of one page in one namespace."""

import re
import shutil
from pathlib import Path

import pytest

from paper import TABLES, results_page
from paper.generate import PAGES as GENERATED

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for snippet in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(snippet, page, "exec"), namespace)


def test_generated_pages_are_what_the_tables_say():
    for name, page in GENERATED.items():
        assert (ROOT / name).read_text() == page(), f"run `make docs`: {name} is not up to date"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_every_number_that_was_measured_is_made_from_a_row(tmp_path):
    """With other numbers in results/*.csv there are other numbers on the pages; and no page has one of its own."""
    page = (ROOT / "docs" / "results.md").read_text()
    for path in sorted((ROOT / "paper" / "results").glob("*.csv")):
        if path.stem in TABLES:
            shutil.copytree(ROOT / "paper" / "results", tmp_path / path.stem)
            changed = tmp_path / path.stem / path.name
            changed.write_text(re.sub(r"(?<=,)\d+\.\d{2,}(?=,)", "7.7777", changed.read_text()))
            assert results_page(TABLES, tmp_path / path.stem) != page, path.name
    assert not re.findall(r"\d\.\d\d", results_page(TABLES, tmp_path / "nowhere"))
    generated = r"<!-- (.+?), by docs/generate.py -->.*?<!-- end of \1 -->"
    readme = re.sub(
        rf"{generated}|```.*?```|(Python|torch) \d\.\d+ or newer", "", (ROOT / "README.md").read_text(), flags=re.DOTALL
    )
    assert not re.findall(r"\d\.\d", readme)
