"""Every Python snippet of the README and of the docs runs; every number that was measured comes from a row."""

import re
from pathlib import Path

import pytest

from paper.pages import RESULTS, ROOT, fill, pages
from paper.tables import NAMES

PAGES = [str(path.relative_to(ROOT)) for path in pages()]


# {page: placeholders that it has at the least}
MEASURED = {"paper-tables.md": 30, "results.md": 6}


@pytest.mark.no_cover  # what a snippet calls has tests of its own
@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs(page, tmp_path, monkeypatch):
    """Those of one page in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for snippet in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(snippet, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_filled(page):
    assert (ROOT / page).read_text() == fill((ROOT / page).read_text()), f"run `make docs`: {page} is not up to date"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", (ROOT / page).read_text()):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


def _anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_a_placeholder_within_a_sentence_does_not_begin_a_line(page):
    """Markdown would end the paragraph there."""
    for line in (ROOT / page).read_text().splitlines():
        assert not line.startswith("<!--=") or re.fullmatch(r"<!--= table\(.*\) -->", line), line


@pytest.mark.parametrize("name", [name for name in NAMES if (RESULTS / f"{name}.csv").exists()])
def test_other_numbers_in_the_rows_are_other_numbers_on_the_page(name, tmp_path):
    page = "".join((ROOT / "docs" / each).read_text() for each in MEASURED)
    shown = re.findall(rf'<!--= \w+\("{name}".*?<!--/-->', page, re.DOTALL)
    assert fill("".join(shown)) == "".join(shown)
    changed = re.sub(r"(?<=,)\d+\.\d{2,}(?=,)", "7.7777", (RESULTS / f"{name}.csv").read_text())
    (tmp_path / f"{name}.csv").write_text(changed)
    assert fill("".join(shown), tmp_path) != "".join(shown)


@pytest.mark.parametrize(("name", "numbers"), MEASURED.items())
def test_no_number_that_was_measured_is_written_by_hand(name, numbers, tmp_path):
    """Without rows there is none on the page."""
    page = fill((ROOT / "docs" / name).read_text(), tmp_path)
    page = re.sub(r"https?:\S+", "", page)
    assert page.count("(not measured yet)") >= numbers
    assert not re.findall(r"\d\.\d\d", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def test_the_readme_has_no_number_of_its_own():
    made = r"<!--= .+? -->.*?<!--/-->|```.*?```"
    made += r"|(Python|torch) \d\.\d+|https?:\S+"
    assert not re.findall(r"\d\.\d\d", re.sub(made, "", (ROOT / "README.md").read_text(), flags=re.DOTALL))
