"""Every Python snippet of the README and of the docs runs, those of one page in one namespace."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for snippet in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(snippet, page, "exec"), namespace)


def test_generated_pages_are_what_the_tables_say(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")  # as for a script that lies there
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for name, page in generated["PAGES"].items():
        assert (ROOT / name).read_text() == page(), f"run `make docs`: {name} is not up to date"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target
