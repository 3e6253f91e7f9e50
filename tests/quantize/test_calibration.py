"""Which images calibrate: odd ones can be trimmed away."""

import pytest
import torch
from torch import nn

from quantize.nets import images, small_net
from repopt.models import deploy
from repopt.quantize import Int8, layer_costs, trimmed


def with_an_odd_one(at, count=20):
    batch = images(count)
    batch[at] *= 50
    return batch


def test_the_odd_image_is_left_out_and_the_others_stay_in_their_order():
    net, batch = deploy(small_net()), with_an_odd_one(at=7)
    kept = torch.cat(trimmed(net, batch.split(8), 0.05))
    assert torch.equal(kept, torch.cat([batch[:7], batch[8:]]))


def test_batches_keep_their_size_and_no_share_leaves_all():
    net, batch = deploy(small_net()), images(20)
    assert [len(part) for part in trimmed(net, batch.split(8), 0.5)] == [8, 2]
    assert torch.equal(torch.cat(trimmed(net, batch.split(8), 0.0)), batch)
    assert torch.equal(torch.cat(trimmed(net, batch.split(8), 0.02)), batch)  # not half an image


def test_an_odd_image_that_only_a_late_layer_notices_is_found():
    """It is its layer's median image that an image is compared with, not other layers."""
    net, batch = deploy(small_net()), images(20)
    seen = []
    late = net.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].abs().amax(1)))
    net(batch)
    late.remove()
    furthest = (seen[0] / seen[0].median()).argmax().item()
    net.linear.register_forward_pre_hook(lambda _, inputs: (inputs[0] ** 9,))  # where they differ is seen there alone
    kept = torch.cat(trimmed(net, [batch], 0.05))
    assert torch.equal(kept, torch.cat([batch[:furthest], batch[furthest + 1 :]]))


def test_trimming_gives_back_what_an_odd_image_cost():
    net, test = deploy(small_net()), images(seed=3)

    def inputs_alone(batches):
        return layer_costs(net, batches, [test], Int8(calibrator="minmax"))[-1].snr_alone

    odd = with_an_odd_one(at=7)
    assert inputs_alone(trimmed(net, [odd], 0.05)) > inputs_alone([odd]) + 10


class Pyramid(nn.Module):
    """A layer that sees the images, smaller ones, and perhaps all of them at once."""

    def __init__(self, together=False):
        super().__init__()
        torch.manual_seed(0)
        self.shared, self.linear, self.together = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), together

    def forward(self, x):
        second = torch.cat([x, x]) if self.together else x[..., ::2, ::2] ** 9  # where they differ is seen there alone
        return self.linear(self.shared(x).mean((2, 3)) + self.shared(second)[: len(x)].mean((2, 3)))


def test_a_layer_that_runs_twice_counts_the_largest_that_an_image_gives_it():
    batch = images(20).clamp(-1, 1)
    batch[7, :, 2, 2] = 1.5
    kept = torch.cat(trimmed(Pyramid(), batch.split(8), 0.05))
    assert torch.equal(kept, torch.cat([batch[:7], batch[8:]]))


def test_a_layer_whose_inputs_are_not_one_for_each_image_is_a_sentence():
    with pytest.raises(ValueError, match=r"^the layer 'shared' takes 40 inputs of 20 images, so .* leave --trim out$"):
        trimmed(Pyramid(together=True), [images(20)], 0.05)


def test_a_model_in_train_mode_is_left_as_it_is():
    net = small_net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    trimmed(net, [images()], 0.1)
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_that_is_none_is_refused(share):
    for refuse in (lambda: Int8(trim=share), lambda: trimmed(small_net(), [images()], share)):
        with pytest.raises(ValueError, match=r"^the share of images that is trimmed must lie in \[0, 1\), not "):
            refuse()


def test_without_images_there_is_a_sentence():
    with pytest.raises(ValueError, match="calibration needs at least one image, and there is none"):
        trimmed(small_net(), [], 0.1)
