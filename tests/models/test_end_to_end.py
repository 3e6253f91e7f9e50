"""Whole models: the plain one with a RepOptimizer beside its CSLA twin with the regular optimizer."""

import pytest
import torch
from torch import nn

import repopt
from repopt.verification.cases import mixed_sign_scales

NETS = {
    "vgg": lambda: repopt.create_model(
        "repopt_vgg_nano", num_classes=5, depths=(2, 2, 3, 1), widths=(8, 8, 12, 16), stem=8
    ),
    "vgg, squeeze and excitation": lambda: repopt.create_model(
        "repopt_vgg_nano", num_classes=5, depths=(2, 1, 2, 1), widths=(8, 8, 12, 16), stem=8, se=True
    ),
    "ghost": lambda: repopt.create_model("repopt_ghostnet_050", num_classes=5, dropout=0),
}
RULES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.005, momentum=0.9, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "ghost")) for name in NETS])
def test_a_repoptimizer_trains_the_plain_model_as_if_it_were_the_twin(name, rule):
    """Thirty steps with batch norms, ReLUs and the authors' weight decay groups, outputs equal all along."""
    net = NETS[name]().double()
    bare = repopt.plan(net)
    plan = bare.with_scales(mixed_sign_scales(bare))
    kernels = plan.init_()
    twin = repopt.csla_model(net, plan, kernels)
    ours, theirs = (RULES[rule](repopt.decay_groups(model, 0.05)) for model in (net, twin))
    repopt.attach(ours, plan, kernels=kernels)
    draw = torch.Generator().manual_seed(1)
    worst = 0.0
    for _ in range(30):
        images = torch.randn(8, 3, 48, 48, generator=draw, dtype=torch.float64)
        labels = torch.randint(5, (8,), generator=draw)
        outputs = []
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            outputs.append(model(images))
            nn.functional.cross_entropy(outputs[-1], labels).backward()
            optimizer.step()
        y, expected = outputs
        worst = max(worst, float((y - expected).detach().abs().max() / expected.detach().abs().max()))
    print(f"{name}, {rule}: {worst:.1e}")
    assert worst < 1e-10


def test_without_the_identity_in_the_decay_the_models_part():
    """Grouping by the number of dimensions alone leaves the twin's identity undecayed."""
    net = NETS["vgg"]().double()
    bare = repopt.plan(net)
    plan = bare.with_scales(mixed_sign_scales(bare))
    twin = repopt.csla_model(net, plan, plan.init_())
    ours = RULES["sgd"](repopt.decay_groups(net, 0.05))
    by_dimension = [
        {"params": [p for p in twin.parameters() if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for p in twin.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    theirs = RULES["sgd"](by_dimension)
    repopt.attach(ours, plan)
    for _ in range(5):
        images = torch.randn(8, 3, 48, 48, dtype=torch.float64)
        outputs = []
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            outputs.append(model(images))
            outputs[-1].square().mean().backward()
            optimizer.step()
    assert (outputs[0] - outputs[1]).abs().max() > 1e-6
