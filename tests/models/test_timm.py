import subprocess
import sys

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.models import GHOST_WIDTHS, deploy, load_checkpoint
from settled import settle

timm = pytest.importorskip("timm", reason="the plug-in is for timm, which is not installed")
from timm.utils.model import reparameterize_model  # noqa: E402

import repopt.models.timm  # noqa: E402 (after the question whether timm is there)


def test_timm_knows_every_model():
    known = set(timm.list_models("repopt_*"))
    assert known == {name if name.startswith("repopt_") else f"repopt_{name}" for name in repopt.list_models()}


@pytest.mark.parametrize("name", ["vgg_nano", "repvgg_nano", "qarepvgg_nano", "ghostnet_050", "repghostnet_050"])
def test_a_model_behaves_as_timm_users_expect(name):
    model = timm.create_model(f"repopt_{name}", num_classes=10, drop_rate=0.3, in_chans=1)
    assert model.dropout == 0.3
    first = model.default_cfg["first_conv"]
    for conv in [first] if isinstance(first, str) else first:
        assert isinstance(model.get_submodule(conv), nn.Conv2d)
    assert model.get_submodule(model.default_cfg["classifier"]) is model.get_classifier()
    x = torch.randn(2, 1, 64, 64)
    assert model.forward_head(model.forward_features(x)).shape == (2, 10)
    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert timm.create_model(f"repopt_{name}", num_classes=0, global_pool="")(torch.randn(2, 3, 64, 64)).ndim == 4


def test_features_only_as_the_readme_has_it():
    backbone = timm.create_model("repopt_vgg_b1", num_classes=10, features_only=True)
    assert backbone.feature_info.channels() == [64, 128, 256, 512, 2048]
    assert repopt.plan(backbone).operators[-1] == "stage4.0.conv"
    chosen = timm.create_model("repopt_ghostnet_050", features_only=True, out_indices=(2, 4))
    assert chosen.feature_info.reduction() == [8, 32]


def test_timms_converter_takes_ours_to_the_deploy_form():
    model = settle(timm.create_model("repopt_repvgg_nano")).eval()
    x = torch.randn(1, 3, 32, 32)
    converted = reparameterize_model(model)
    torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in converted.modules())


@pytest.mark.parametrize("name", ["repvgg_a0", pytest.param("repvgg_b1", marks=pytest.mark.slow)])
def test_timms_repvgg_loaded_here_computes_the_same(name):
    """Before and after conversion, in float32."""
    theirs = settle(timm.create_model(name)).eval()
    ours = repopt.create_model(name).eval()
    load_checkpoint(ours, theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    converted = reparameterize_model(theirs)
    from_converted = repopt.create_model(name, deploy=True).eval()
    load_checkpoint(from_converted, converted.state_dict())
    expected = theirs(x)
    for outputs in (ours(x), deploy(ours)(x), from_converted(x)):
        assert (outputs - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("size", GHOST_WIDTHS)
def test_timms_repghostnet_loaded_here_computes_the_same(size):
    theirs = settle(timm.create_model(f"repghostnet_{size}")).eval()
    ours = repopt.create_model(f"repghostnet_{size}").eval()
    load_checkpoint(ours, theirs.state_dict())
    x = torch.randn(1, 3, 64, 64)
    deployed = deploy(ours)
    expected = theirs(x)
    for outputs in (ours(x), deployed(x)):
        assert (outputs - expected).norm() / expected.norm() < 1e-5
    fused = reparameterize_model(theirs)
    norms = sum(module.num_features for module in fused.modules() if isinstance(module, nn.BatchNorm2d))
    folded = sum(param.numel() for param in fused.parameters()) - norms
    assert sum(param.numel() for param in deployed.parameters()) == folded


def test_a_model_of_timm_is_planned_searched_and_verified():
    net = timm.create_model("resnet10t", num_classes=3).double()
    plan = repopt.plan(net, {r"layer[12]\.\d+\.conv\d$": [Conv(3), Conv(1), Identity()]})
    assert len(plan.operators) == 4
    search = repopt.search_model(net, plan)
    assert search(torch.randn(2, 3, 32, 32, dtype=torch.float64)).shape == (2, 3)
    scales = repopt.extract_scales(search)
    report = repopt.verify(
        net, plan.with_scales(scales), lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), steps=3
    )
    assert report.worst < 1e-12


def test_without_timm_the_plug_in_says_what_to_install():
    script = "import sys; sys.modules['timm'] = None; import repopt; repopt.create_model('repopt_vgg_nano')\n"
    script += "import repopt.models.timm"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert "needs timm and torchvision, and timm is not installed: pip install -e '.[timm]'" in done.stderr
