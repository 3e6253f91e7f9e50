"""An INT8 program is the model with its weights and inputs rounded, and nothing else."""

import copy

import pytest
import torch
from torch import nn

import repopt
from quantize.nets import images, small_net
from repopt.models import deploy
from repopt.quantize import Int8, layer_costs, post_training
from repopt.quantize.pt2e import calibrate_, convert, prepare, switch_
from repopt.quantize.sensitivity import signal_to_noise

SETTINGS = [
    Int8(weights=weights, calibrator=calibrator)
    for weights in ("channel", "tensor")
    for calibrator in ("histogram", "minmax")
]


def rounded(setting, net=None):
    prepared = prepare(deploy(net or small_net()), images(), setting)
    calibrate_(prepared, [images(seed=1), images(seed=2)])
    return prepared


def dequantized(program):
    """The weights that the program computes with, by the number of their entries and order."""
    found = []
    for node in program.graph.nodes:
        if "dequantize_per_" in str(node.target) and node.args[0].op == "get_attr":
            integers = getattr(program, node.args[0].target)
            assert integers.dtype == torch.int8
            if "channel" in str(node.target):
                scale = getattr(program, node.args[1].target)
                scale = scale.view(-1, *[1] * (integers.ndim - 1))
            else:
                scale = torch.tensor(node.args[1])
            found.append((integers * scale, scale))
    return found


@torch.no_grad()
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_prepared_program_computes_what_the_integers_will(setting):
    prepared = rounded(setting)
    simulated = prepared(images(seed=3))
    torch.testing.assert_close(convert(prepared)(images(seed=3)), simulated, rtol=0, atol=0)


@torch.no_grad()
def test_switched_off_it_is_the_float_model():
    net = small_net()
    prepared = rounded(Int8(), net)
    switch_(prepared, measure=False, quantize=False)
    torch.testing.assert_close(prepared(images()), net(images()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", ["channel", "tensor"])
def test_a_weight_is_within_half_a_step_and_steps_are_as_fine_as_asked_for(weights):
    net = deploy(small_net())
    kernels = [module.weight for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    found = dequantized(post_training(net, [images()], Int8(weights=weights)))
    assert len(found) == len(kernels)
    for kernel, (value, scale) in zip(kernels, found, strict=True):
        assert ((value - kernel).abs() <= scale / 2 + 1e-6).all()
        largest = kernel.abs().flatten(1).amax(1) if weights == "channel" else kernel.abs().max()
        torch.testing.assert_close(scale.flatten(), largest.flatten() / 127, rtol=1e-4, atol=0)


@torch.no_grad()
def test_the_largest_weight_of_a_channel_is_kept():
    """It is the identity's in most layers of a trained network: an error there would add up over the depth."""
    net = deploy(small_net())
    convs = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    for conv in convs:
        conv.weight[1] *= 1e-3  # nor is a weak channel rounded more coarsely than others
    kernels = [module.weight.flatten(1) for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for kernel, (value, _) in zip(kernels, dequantized(post_training(net, [images()], Int8())), strict=True):
        largest = kernel.abs().argmax(1, keepdim=True)
        torch.testing.assert_close(value.flatten(1).gather(1, largest), kernel.gather(1, largest), rtol=1e-4, atol=0)


@torch.no_grad()
def test_one_scale_for_all_channels_costs_where_channels_differ():
    """Even for a channel that never fires: its large weights leave the others few of the 256 steps."""
    net = deploy(small_net())
    conv = net.stage3[1].conv
    conv.weight[0] *= 100
    conv.bias[0] = -1e6
    expected = net(images(seed=3))
    by_channel, by_tensor = (
        signal_to_noise(expected, post_training(net, [images()], Int8(weights=weights))(images(seed=3)))
        for weights in ("channel", "tensor")
    )
    assert by_channel > by_tensor + 6


@torch.no_grad()
@pytest.mark.parametrize("family", ["repvgg", "qarepvgg"])
def test_branches_are_folded_before_they_are_rounded(family):
    net = small_net(family)
    before = copy.deepcopy(net.state_dict())
    program = post_training(net, [images()], Int8())
    assert len(dequantized(program)) == 1 + 5 + 1  # stem, layers, classifier
    assert signal_to_noise(net(images(seed=3)), program(images(seed=3))) > 20
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@torch.no_grad()
def test_a_padding_in_words_is_the_one_in_numbers():
    nets = []
    for first, second in ((("same", "valid")), (((1, 2), 0))):
        torch.manual_seed(0)
        convs = nn.Conv2d(3, 8, 3, padding=first, dilation=(1, 2)), nn.Conv2d(8, 8, 3, padding=second)
        nets.append(nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.Flatten(), nn.Linear(8 * 14 * 14, 4)).eval())
    words, numbers = (post_training(net, [images()], Int8())(images()) for net in nets)
    torch.testing.assert_close(words, numbers, rtol=0, atol=0)
    assert (nets[0][0].padding, nets[0][2].padding) == ("same", "valid")


def test_a_model_without_anything_to_quantize_is_refused():
    """Rather than evaluated as if it were INT8."""
    with pytest.raises(RuntimeError, match=r"torchao quantizes nn\.Conv2d .* and this Sequential has none"):
        prepare(nn.Sequential(nn.BatchNorm2d(3)).eval(), images(), Int8())


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        ([], "calibration needs at least one image, and there is none"),
        ([images(0)], "calibration needs at least one image in each batch, and there is none"),
        ([images()[:, :1]], r"does not take a batch of 1 x 1 x 16 x 16 float32 .*batch, 3, height"),
        ([images(), images()[:, :1]], r"must be batch x 3 x height x width, not of shape \(32, 1, 16, 16\)"),
        ([images()[0]], r"must be batch x channels x height x width, not of shape \(3, 16, 16\)"),
    ],
    ids=["none", "an empty batch", "channels", "other channels", "no batch"],
)
def test_images_that_cannot_be_calibrated_on(batches, sentence):
    with pytest.raises(ValueError, match=sentence):
        post_training(small_net(), batches, Int8())
    with pytest.raises(ValueError, match=sentence):
        layer_costs(small_net(), batches, batches, Int8())


@pytest.fixture(scope="module")
def prepared_once():
    """A program in training that has seen a batch, and its state."""
    prepared = prepare(small_net(), images(), Int8(), training=True)
    prepared.train()
    prepared(images())
    return prepared, copy.deepcopy(prepared.state_dict())


@pytest.fixture
def in_training(prepared_once):
    """The program as it was after its first batch."""
    prepared, state = prepared_once
    prepared.load_state_dict(state)
    prepared.train()
    switch_(prepared, measure=True, quantize=True)
    return prepared


def test_training_rounds_and_lets_gradients_through(in_training):
    prepared = in_training
    rounded = prepared(images())
    rounded.square().sum().backward()
    assert all(param.grad is not None and param.grad.abs().sum() > 0 for param in prepared.parameters())
    switch_(prepared, measure=False, quantize=False)
    assert signal_to_noise(prepared(images()), rounded) < 60  # equal but for the last bits would be 120 and more


def test_ranges_are_those_of_training_images_alone(in_training):
    """An evaluation between epochs, or of the test set after the last, must not calibrate the program."""
    prepared = in_training
    before = copy.deepcopy(prepared.state_dict())

    def moved():
        measured = ("scale", "zero_point", "min_val", "max_val", "running_mean", "running_var")
        state = prepared.state_dict()
        return [name for name in state if name.endswith(measured) and not torch.equal(state[name], before[name])]

    prepared.eval()
    prepared(10 * images(seed=5))
    assert not moved()
    prepared.train()
    prepared(10 * images(seed=5))
    assert len(moved()) > 20


@pytest.mark.slow
@torch.no_grad()
def test_what_was_trained_is_what_is_converted():
    prepared = prepare(small_net(), images(), Int8(), training=True)
    prepared.train()
    prepared(images())
    prepared.eval()
    expected = prepared(images(seed=3))
    program = convert(prepared)
    assert signal_to_noise(expected, program(images(seed=3))) > 25  # to a few steps of 256
    assert not [node for node in program.graph.nodes if "batch_norm" in str(node.target)]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("family", ["repghostnet", "repopt_ghostnet"])
def test_a_ghostnet_is_quantized_too(family):
    torch.manual_seed(0)
    net = repopt.create_model(f"{family}_050", num_classes=10)
    for seed in range(20):
        net(images(64, 32, seed=seed))
    net.eval()
    program = post_training(net, [images(32, 32)], Int8())
    assert len(dequantized(program)) > 60
    assert signal_to_noise(net(images(32, 32, seed=3)), program(images(32, 32, seed=3))) > 10
