"""Table 2: the largest batches are those that were timed, and fill the memory of the paper's GPU.

Table 3: timm's models are folded as ours are.
"""

import pytest
import timm
import torch
from torch import nn

from paper.pages import RESULTS
from paper.table2 import LARGEST, folded
from paper.view import matching, read_rows

ROWS = read_rows(RESULTS / "table2.csv")


@pytest.mark.parametrize(("model", "method"), LARGEST)
def test_the_largest_batch_of_each_method_fills_11_gb_and_is_what_was_trained(model, method):
    at_largest = matching(ROWS, model=model, method=method, batches="largest")
    assert {int(row["batch_size"]) for row in at_largest} == {LARGEST[model, method]}
    assert LARGEST[model, method] % 8 == 0
    (timed,) = matching(at_largest, what="speed")
    assert 0.96 * 11e9 < int(timed["peak_memory_bytes"]) <= 11e9


@pytest.mark.parametrize("name", ["efficientnet_b2", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_a_folded_model_of_timm_computes_the_same_without_norms(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4).eval().double()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 2.0)
            nn.init.normal_(norm.bias, std=0.1)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.inference_mode():
        before = model(images)
        after = folded(model)(images)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert before.std() > 0
    torch.testing.assert_close(after, before, rtol=1e-8, atol=1e-8 * float(before.abs().max()))
