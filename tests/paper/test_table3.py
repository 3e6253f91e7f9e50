"""Table 3: timm's models are folded as ours are."""

import pytest
import timm
import torch
from torch import nn

from paper.table2 import folded


@pytest.mark.parametrize("name", ["efficientnet_b2", "vgg16"])
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
