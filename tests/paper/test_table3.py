"""Table 3: the others are folded as ours are, and ours are told as a ratio to those beside them in the paper."""

import pytest
import timm
import torch
from torch import nn

from made_up import line
from paper import TABLES
from paper.table3 import folded


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


def part(**speeds):
    """The last paragraph of the table's part."""
    rows = [
        line(what="speed", name=name, images_per_second=speed, size=224, test_size="", norms="folded", timings=3)
        for name, speed in speeds.items()
    ]
    return TABLES["table3"].part(rows)[-1]


def test_ours_are_told_as_a_ratio_to_those_beside_them():
    assert part(**{"RepOpt-VGG-B1": 300, "EfficientNet-B2": 200, "VGGNet-16": 100}) == (
        "Times the images a second of another, in brackets the paper's: RepOpt-VGG-B1 to EfficientNet-B2 1.50 (1.06)."
    )


def test_what_the_paper_has_faster_and_we_slower_is_said():
    speeds = {"RepOpt-VGG-L2": 79, "EfficientNet-B3": 100, "RepOpt-VGG-L2, SE": 76, "EfficientNet-B4": 100}
    assert part(**speeds).endswith(
        "RepOpt-VGG-L2 to EfficientNet-B3 0.79 (1.24); RepOpt-VGG-L2, SE to EfficientNet-B4 0.76 (0.98). Faster in the "
        "paper, and slower here: RepOpt-VGG-L2 than EfficientNet-B3."
    )
