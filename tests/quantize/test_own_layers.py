"""INT8 of networks in which something else uses the layer that a norm is behind, or its weight."""

import pytest
import torch
from torch import nn

import repopt
from quantize.nets import images
from repopt.quantize import Int8
from repopt.quantize.pt2e import prepare


class Parts(nn.Module):
    """Two layers, and norms that change much."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(2)])
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.3, 3)
            nn.init.uniform_(norm.weight, 0.3, 3)


class PreActivation(Parts):
    def forward(self, x):
        y = self.first(x)
        return (y + self.second(self.norms[0](y).relu())).mean((2, 3))


class TwoNorms(Parts):
    def forward(self, x):
        y = self.second(self.first(x))
        return (self.norms[0](y).relu() + self.norms[1](y).relu()).mean((2, 3))


class WithAndWithoutNorm(Parts):
    def forward(self, x):
        y = self.first(x)
        return (self.norms[0](self.second(y)).relu() + self.second(y)).mean((2, 3))


class Twice(Parts):
    def forward(self, x):
        y = self.first(x)
        for _ in range(2):
            y = self.norms[0](self.second(y)).relu()
        return y.mean((2, 3))


class OfALinearLayer(Parts):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(768, 8), nn.BatchNorm1d(8)
        self.norm.load_state_dict(self.norms[0].state_dict())

    def forward(self, x):
        y = self.linear(x.flatten(1))
        return self.norm(y).relu() + y


NETS = [PreActivation, TwoNorms, WithAndWithoutNorm, Twice, OfALinearLayer]


@pytest.mark.parametrize("backend", ["x86", "onnxruntime"])
@pytest.mark.parametrize("weights", ["channel", "tensor"])
@pytest.mark.parametrize("kind", NETS)
def test_a_norm_is_folded_into_its_own_layer_alone(kind, weights, backend, tmp_path):
    """And ONNX Runtime runs a file in which two layers had one weight."""
    net, x = kind().eval(), images()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    path = None if backend == "x86" else tmp_path / "net.onnx"
    with torch.no_grad():
        wanted = net(x)
        found = repopt.quantize_model(net, [x], path, setting=Int8(weights=weights, backend=backend))(x)
    assert (found - wanted).norm() < 0.05 * wanted.norm()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("kind", [kind for kind in NETS if kind is not Twice])  # whose norm is refused before
def test_qat_refuses_what_it_would_get_wrong(kind):
    with pytest.raises(RuntimeError, match="something else uses a layer that a batch norm is behind, or its weight"):
        prepare(kind(), images(), Int8(), training=True)
