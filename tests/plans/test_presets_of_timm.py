"""The presets on networks of timm's: equal to the real blocks, and merged from real branches."""

from itertools import product

import pytest
import torch

import repopt
from repopt.plans.presets import PRESETS
from settled import settle

timm = pytest.importorskip("timm", reason="these are networks of timm's, which is not installed")

# name -> how many operators a preset plans, and what it leaves out
NETS = {
    "resnet18": (17, []),
    "resnet50": (17, []),
    "mobilenetv2_100": (18, []),
    "convnext_atto": (12, ["stem.0", *(f"stages.{stage}.downsample.1" for stage in (1, 2, 3))]),
    "mobileone_s0": (85, []),
}
RULES = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.05),
}
QUICK = {("convnext_atto", "repvgg", rule) for rule in RULES}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(case))
    for case in product(NETS, PRESETS, RULES)
]


@pytest.mark.parametrize(("name", "preset", "rule"), CASES)
def test_a_planned_network_is_trained_as_its_blocks_are(name, preset, rule):
    net = timm.create_model(name)
    plan = repopt.plan(net, preset, "depth")
    planned, left_out = NETS[name]
    assert (len(plan.operators), list(plan.left_out)) == (planned, left_out)
    report = repopt.verify(net, plan, RULES[rule], steps=3)
    print(f"{name}, {preset}, {rule}: {report.worst:.1e}")
    assert report.worst <= 1e-10
    assert report.passed


@pytest.mark.parametrize("norm", [True, "qarepvgg"])
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param(name, preset, marks=() if (name, preset) == ("resnet18", "acnet") else pytest.mark.slow)
        for name, preset in product(NETS, PRESETS)
    ],
)
def test_real_branches_merge_into_the_plain_network(name, preset, norm):
    net = timm.create_model(name, num_classes=10).double()
    real = settle(repopt.branch_model(net, repopt.plan(net, preset), norm)).eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        for label, param in real.named_parameters():
            if label.endswith(".gamma"):  # ConvNeXt's blocks start at 1e-6 of what they add
                param.fill_(1)
        expected = real(x)
        worst = ((repopt.merge(real, inplace=True)(x) - expected).abs().max() / expected.abs().max()).item()
    print(f"{name}, {preset}, norm={norm}: {worst:.1e}")
    assert worst <= 1e-10
