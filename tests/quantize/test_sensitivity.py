import pytest
import torch

import other_nets
from quantize.nets import images, small_net
from repopt.models import deploy
from repopt.quantize import Int8, layer_costs
from repopt.quantize.sensitivity import signal_to_noise


def test_signal_to_noise_is_the_ratio_of_the_powers_in_decibels():
    signal = torch.tensor([3.0, 4.0])
    assert signal_to_noise(signal, signal + torch.tensor([0.5, 0.0])) == pytest.approx(20.0)
    assert signal_to_noise(signal, signal) == float("inf")


def test_the_layer_that_was_made_hard_to_quantize_is_found():
    """One large weight leaves all others of its tensor a few of 256 steps; the layers before it do not notice."""
    net = deploy(small_net())
    before = layer_costs(net, [images()], [images(seed=3)], Int8(weights="tensor"))
    with torch.no_grad():
        net.stage3[0].conv.weight[0, 0, 0, 0] = 30.0
    costs = layer_costs(net, [images()], [images(seed=3)], Int8(weights="tensor"))
    assert [cost.layer for cost in costs] == [
        *("stage0.conv", "stage1.0.conv", "stage2.0.conv", "stage3.0.conv", "stage3.1.conv", "stage4.0.conv", "linear"),
        *("all weights", "all inputs"),
    ]
    *layers, weights, inputs = costs
    assert min(layers, key=lambda cost: cost.snr_alone).layer == "stage3.0.conv"
    assert weights.snr_alone < before[-2].snr_alone - 3  # it is a weight that was made hard
    assert (weights.snr, inputs.snr) == (None, None)
    assert [cost.snr for cost in costs[:3]] == pytest.approx([cost.snr for cost in before[:3]])
    assert all(0 <= cost.agreement_alone <= 100 for cost in costs)


def test_one_large_activation_is_a_cost_of_the_inputs_and_not_of_the_weights():
    net, batch = deploy(small_net()), images(seed=3)
    before = layer_costs(net, [images()], [batch], Int8(calibrator="minmax"))[-2:]
    outlier = images()
    outlier[0, 0, 0, 0] = 1e4
    weights, inputs = layer_costs(net, [outlier], [batch], Int8(calibrator="minmax"))[-2:]
    assert weights == before[0]
    assert inputs.snr_alone < before[1].snr_alone - 10


def test_a_network_that_changes_its_images_costs_what_one_that_copies_them_does():
    copying, in_place = other_nets.Copying(), other_nets.InPlace()
    in_place.load_state_dict(copying.state_dict())
    found = [layer_costs(net, [images()], [images(seed=3)], Int8()) for net in (copying, in_place)]
    assert [cost.snr_alone for cost in found[0]] == [cost.snr_alone for cost in found[1]]
    assert [cost.snr for cost in found[0]] == [cost.snr for cost in found[1]]
