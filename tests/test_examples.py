import difflib
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


def test_after_is_before_with_five_lines_added():
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("before.py", "after.py"))
    diff = list(difflib.ndiff(before, after))
    removed = [line for line in diff if line.startswith("- ")]
    added = [line for line in diff if line.startswith("+ ") and line.strip("+ ")]
    assert [line[:5] for line in removed] == ['- """'], "only the title changes"
    assert len(added) - len(removed) == 5
