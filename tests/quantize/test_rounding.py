"""GPTQ: weights that are whole numbers of INT8's steps, and make up for each other's rounding errors."""

import copy
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import repopt
from quantize.nets import images, small_net
from repopt.cli import main
from repopt.models import as_deployed
from repopt.quantize import Int8, QuantizeJob, layer_costs
from repopt.quantize.rounding import _patches, rounded_by_gptq
from repopt.report import write_report

LAYERS = {
    "padded": lambda: nn.Conv2d(8, 6, 3, padding=1),
    "strided": lambda: nn.Conv2d(8, 6, 3, stride=(2, 1)),
    "dilated": lambda: nn.Conv2d(8, 6, 3, dilation=(2, 1), padding="same", padding_mode="reflect"),
    "even": lambda: nn.Conv2d(8, 6, 2, padding="same", padding_mode="circular"),
    "grouped": lambda: nn.Conv2d(8, 4, (1, 3), groups=2, padding=(0, 1)),
    "depthwise": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "linear": lambda: nn.Linear(12, 5),
}


def draw(seed):
    return torch.Generator().manual_seed(seed)


def smooth(count=64, channels=8, size=12, seed=0):
    """As activations are: not negative, and alike where they are near."""
    noise = torch.rand(count, channels, size + 4, size + 4, generator=draw(seed))
    return functional.avg_pool2d(noise, 5, stride=1).contiguous()


def identity_like():
    """A kernel as RepOpt's are: the identity's weight is 30 times as large as the largest of the others."""
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.mul_(1 / layer.weight.abs().max())
        layer.weight[range(8), range(8), 1, 1] = 30.0
    return layer


def started():
    """A network as RepOpt starts it, whose norms have seen images."""
    net = repopt.create_model("repopt_vgg_nano", num_classes=10)
    repopt.plan(net, scales="repopt_vgg_nano").init_(generator=draw(0))
    with torch.no_grad():
        for seed in range(20):
            net(smooth(channels=3, size=16, seed=seed))
    return net.eval()


def steps(weight, by):
    return weight.abs().amax((1, 2, 3) if by == "channel" else None).view(-1, 1, 1, 1) / 127


def nearest(weight, by):
    return (weight / steps(weight, by)).round() * steps(weight, by)


@pytest.mark.parametrize("most", [10_000, 50])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_patches_of_a_layer_times_its_weights_are_its_outputs(kind, most):
    """All of them, or some."""
    torch.manual_seed(0)
    layer, x = LAYERS[kind](), smooth(3)
    groups = getattr(layer, "groups", 1)
    rows = layer.weight.reshape(groups, len(layer.weight) // groups, -1)
    outputs = layer(x) if kind == "linear" else layer(x).movedim(1, -1)
    wanted = outputs.flatten(0, -2)
    chosen = torch.randint(len(wanted), (most,), generator=draw(0)) if most < len(wanted) else slice(None)
    found = (_patches(layer, x, most, draw(0)) @ rows.mT).transpose(0, 1).flatten(1) + layer.bias
    torch.testing.assert_close(found, wanted[chosen])


@pytest.mark.parametrize("by", ["channel", "tensor"])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "linear"])
def test_rounded_weights_are_not_rounded_again_and_the_step_stays(kind, by):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    before = layer.weight.clone()
    (rounded,) = rounded_by_gptq(nn.Sequential(layer), [smooth()], by)
    torch.testing.assert_close(nearest(rounded.weight, by), rounded.weight)
    torch.testing.assert_close(steps(rounded.weight, by), steps(before, by))
    assert not torch.equal(rounded.weight, nearest(before, by))
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("by", ["channel", "tensor"])
def test_beside_an_identity_it_removes_most_of_the_error_of_rounding_to_the_nearest(by):
    layer = identity_like()
    (rounded,) = rounded_by_gptq(nn.Sequential(layer), [smooth()], by)
    x = smooth(seed=1)  # other images
    errors = [
        (functional.conv2d(x, layer.weight - w, padding=1)).norm() for w in (rounded.weight, nearest(layer.weight, by))
    ]
    assert errors[0] < errors[1] / 3


def test_two_weights_of_one_input_make_up_for_each_other():
    """0.4 and 0.4 steps are 0 and 0 to the nearest, and together 0.8: 0 and 1."""
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[127.0, 0.4, 0.4]]))
    inputs = torch.randn(64, 2, generator=draw(0))[:, [0, 1, 1]]
    (rounded,) = rounded_by_gptq(nn.Sequential(layer), [inputs])
    torch.testing.assert_close(rounded.weight.sort().values, torch.tensor([[0.0, 1.0, 127.0]]))


def test_inputs_that_are_never_seen_and_weights_that_are_0_do_no_harm():
    net = nn.Sequential(identity_like(), nn.Conv2d(8, 8, 1))
    with torch.no_grad():
        net[0].weight[3] = 0
        net[1].weight.zero_()
    x = smooth()
    x[:, 2] = 0
    rounded = rounded_by_gptq(net, [x, torch.zeros_like(x)])
    assert all(param.isfinite().all() for param in rounded.parameters())
    assert not rounded[0].weight[3].any()
    assert not rounded[1].weight.any()
    dark = rounded_by_gptq(net, [torch.zeros_like(x)])
    torch.testing.assert_close(dark[0].weight, nearest(net[0].weight, "channel").nan_to_num())


def test_torchs_default_device_does_not_matter():
    net, x = nn.Sequential(identity_like()), smooth()
    wanted = rounded_by_gptq(net, [x])[0].weight
    with torch.device("meta"):
        assert torch.equal(rounded_by_gptq(net, [x])[0].weight, wanted)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("by", ["channel", "tensor"])
def test_a_gpu_rounds_as_well_as_a_cpu(by):
    """Few weights differ: those that one of them rounds up, and the other down."""
    net, x = as_deployed(started()), smooth(channels=3, size=16)
    wanted, found = (rounded_by_gptq(copy.deepcopy(net).to(device), [x], by).cpu() for device in ("cpu", "cuda"))
    weights = [torch.cat([param.flatten() for param in each.parameters()]) for each in (wanted, found)]
    assert torch.isclose(*weights).float().mean() > 0.95
    outputs = [each(x) - net(x) for each in (wanted, found)]
    assert outputs[1].norm() < 1.1 * outputs[0].norm()


def test_a_layer_that_the_images_do_not_reach_stays():
    net = small_net()
    net.unused = nn.Conv2d(3, 3, 3)
    rounded = rounded_by_gptq(net, [images()])
    assert torch.equal(rounded.unused.weight, net.unused.weight)
    assert not torch.equal(rounded.stage1[0].conv.weight, net.stage1[0].conv.weight)


@pytest.mark.parametrize("by", ["channel", "tensor"])
def test_int8_is_nearer_to_a_repopt_network_by_gptq(by):
    net, x = started(), smooth(channels=3, size=16)
    with torch.no_grad():
        wanted, noise = net(x), {}
        for rounding in ("nearest", "gptq"):
            int8 = repopt.quantize_model(net, [x], setting=Int8(weights=by, rounding=rounding))
            noise[rounding] = (int8(x) - wanted).norm()
    assert noise["gptq"] < 0.8 * noise["nearest"]


def test_an_onnx_file_holds_the_weights_of_gptq(tmp_path):
    net, x = started(), smooth(channels=3, size=16)
    rounded, setting = rounded_by_gptq(as_deployed(net), [x]), Int8(backend="onnxruntime")
    wanted = repopt.quantize_model(rounded, [x], tmp_path / "wanted.onnx", setting=setting)
    found = repopt.quantize_model(net, [x], tmp_path / "found.onnx", setting=replace(setting, rounding="gptq"))
    assert torch.equal(found(x), wanted(x))
    assert not torch.equal(found(x), repopt.quantize_model(net, [x], tmp_path / "usual.onnx", setting=setting)(x))


def test_a_weight_of_two_layers_is_rounded_for_both():
    first, second = identity_like(), nn.Conv2d(8, 8, 3, padding=1, bias=False)
    second.weight = first.weight
    x = smooth()
    usual = nearest(first.weight, "channel")
    errors = []
    for weight in (rounded_by_gptq(nn.Sequential(first, nn.Tanh(), second), [x])[0].weight, usual):
        hidden = first(x).tanh()
        errors.append(sum(functional.conv2d(at, first.weight - weight, padding=1).norm() for at in (x, hidden)))
    assert errors[0] < errors[1] / 2


class Counting(nn.Module):
    """Its outputs depend on how many images it has seen; its layer takes its input by name."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.conv(input=x).mean((2, 3)) + self.seen


def test_what_a_forward_pass_changes_stays():
    rounded = rounded_by_gptq(Counting(), [images(), images(16)])
    assert rounded.seen == 0
    torch.testing.assert_close(nearest(rounded.conv.weight, "channel"), rounded.conv.weight)


def test_inputs_that_are_too_large_are_said_to_be():
    with pytest.raises(ValueError, match="the inputs of '1' are too large for GPTQ"):
        rounded_by_gptq(nn.Sequential(nn.Hardtanh(0, 1e38), nn.Linear(3, 3)), [torch.full((4, 3), 1e38)])


def test_a_model_without_such_layers_has_nothing_to_round():
    with pytest.raises(
        ValueError, match=r"GPTQ rounds the weights of nn.Conv2d and nn.Linear, and this Conv1d applies"
    ):
        rounded_by_gptq(nn.Conv1d(2, 2, 1), [torch.randn(2, 2, 2)])


def test_a_norm_that_is_to_be_folded_would_change_the_step_of_a_tensor():
    with pytest.raises(ValueError, match="give weights scales by channel"):
        rounded_by_gptq(small_net(), [images()], "tensor")
    rounded_by_gptq(nn.Sequential(nn.Conv2d(3, 3, 3), nn.InstanceNorm2d(3)), [images()], "tensor")


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"method": "qat"}, "QAT rounds to the nearest while it trains"), ({"layers": True}, "layers are measured with")],
)
def test_what_it_is_not_for_is_said(fields, words):
    with pytest.raises(ValueError, match=f"^GPTQ is for PTQ alone, and {words}.*: leave --rounding gptq out"):
        QuantizeJob(setting=Int8(rounding="gptq"), **fields)


def test_the_costs_of_layers_are_those_of_the_nearest():
    with pytest.raises(ValueError, match="leave --rounding gptq out"):
        layer_costs(small_net(), [images()], [images()], Int8(rounding="gptq"))


def test_a_run_says_that_its_weights_are_rounded_by_gptq(trained_run, tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(f"quantize {trained_run} --rounding gptq --no-speed --images 16 --out {tmp_path}/int8".split())
    assert done.value.code == 0
    assert "per-channel weights by GPTQ," in capsys.readouterr().out
    run = shutil.copytree(trained_run, tmp_path / "run")
    shutil.copytree(tmp_path / "int8", run / "int8")
    assert "per-channel weights by GPTQ, " in write_report([run], tmp_path / "page.html").read_text()
