"""INT8 of networks in which something else uses the layer that a norm is behind, or its weight."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import repopt
from quantize.nets import images
from repopt.quantize import Int8
from repopt.quantize.pt2e import convert, prepare
from repopt.quantize.sensitivity import _layers


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


class OneBias(Parts):
    def __init__(self):
        super().__init__()
        self.third = nn.Conv2d(8, 8, 1)
        self.third.bias = self.second.bias

    def forward(self, x):
        y = self.norms[0](self.second(self.first(x))).relu()
        return self.norms[1](self.third(y)).relu().mean((2, 3))


class OneDimensional(nn.Module):
    """Its convolution, whose output is used twice, is of a kind that torchao folds norms into, too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.last = nn.Conv1d(3, 8, 3, padding="same"), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, x):
        y = self.conv(x.flatten(2))
        return self.last((self.norm(y).relu() + y).mean(2))


def test_other_convolutions_are_told_apart_too():
    net, x = OneDimensional().eval(), images()
    with torch.no_grad():
        assert (repopt.quantize_model(net, [x])(x) - net(x)).norm() < 0.05 * net(x).norm()


@pytest.mark.parametrize("kind", [WithAndWithoutNorm, OneBias])
def test_qat_refuses_what_it_would_get_wrong(kind):
    with pytest.raises(RuntimeError, match="something else uses the weight or bias of a layer"):
        prepare(kind(), images(), Int8(), training=True)


@pytest.mark.parametrize("kind", [PreActivation, TwoNorms, OfALinearLayer])
def test_qat_is_right_where_something_else_uses_the_output_that_a_norm_is_behind(kind):
    net, x = kind(), images(256)
    with torch.no_grad():
        for _ in range(100):  # until norms have the statistics of these images
            net(x)
        program = prepare(net, x, Int8(), training=True)
        for _ in range(20):
            program(x)
        int8 = convert(program)
        wanted = net.eval()(x)
        assert (int8(x) - wanted).norm() < 0.05 * wanted.norm()


class Odd(Parts):
    """Outputs of several kinds, some of them drawn at random."""

    def forward(self, x):
        y = self.second(self.first(x))
        return {"maps": functional.dropout(y, 0.5, training=True), "best": y.argmax(1), "none": None, "count": 3}


def test_a_model_may_return_and_draw_what_it_will():
    found = repopt.quantize_model(Odd().eval(), [images()])(images())
    assert (found["maps"].shape, found["best"].dtype, found["none"]) == ((32, 8, 16, 16), torch.int64, None)


@pytest.mark.parametrize(("kind", "uses"), [(TwoNorms, 2), (Twice, 2), (PreActivation, 1)])
def test_the_cost_of_a_layer_is_that_of_all_its_uses(kind, uses):
    nodes, fakes = _layers(prepare(kind().eval(), images(), Int8()))["second"]
    assert len(nodes) == uses
    assert len({id(fake) for fake in fakes}) >= uses + 1  # of inputs, and of weights
