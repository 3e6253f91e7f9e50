"""Table 2: the largest batches are those that were timed, and fill the memory of the paper's GPU."""

import pytest

from paper.pages import RESULTS
from paper.table2 import LARGEST
from paper.view import matching, read_rows

ROWS = read_rows(RESULTS / "table2.csv")


@pytest.mark.parametrize(("model", "method"), LARGEST)
def test_the_largest_batch_of_each_method_fills_11_gb_and_is_what_was_trained(model, method):
    at_largest = matching(ROWS, model=model, method=method, batches="largest")
    assert {int(row["batch_size"]) for row in at_largest} == {LARGEST[model, method]}
    assert LARGEST[model, method] % 8 == 0
    (timed,) = matching(at_largest, what="speed")
    assert 0.96 * 11e9 < int(timed["peak_memory_bytes"]) <= 11e9
