import difflib
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_runs(example):
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_after_is_before_with_lines_added_and_none_but_the_title_changed():
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("before.py", "after.py"))
    diff = list(difflib.ndiff(before, after))
    removed = [line for line in diff if line.startswith("- ")]
    added = [line for line in diff if line.startswith("+ ") and line.strip("+ ")]
    assert len(removed) == 1
    assert removed[0].startswith('- """')
    assert len(added) - len(removed) == 5
