import pytest
import torch

import repopt
from repopt.bench.inference import inference_speed

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("tf32", torch.float32)]
)
def test_a_model_sees_batches_of_noise_in_the_asked_precision(precision, dtype):
    model, seen = repopt.create_model("repopt_vgg_nano", num_classes=4), []
    model.register_forward_pre_hook(lambda model, inputs: seen.append(inputs[0]))
    found = inference_speed(model, batch_size=2, size=32, precision=precision, device=CPU, seconds=0.01)
    assert 0 < found < float("inf")
    assert len(seen) > 3  # the clock starts when the model is warm
    assert {(tuple(images.shape), images.dtype) for images in seen} == {((2, 3, 32, 32), dtype)}
    assert seen[0].std() > 0
    assert {param.dtype for param in model.parameters()} == {dtype}


def test_a_model_is_measured_as_it_is_deployed():
    """In eval mode: batch norms are left as they were."""
    model = repopt.create_model("repopt_vgg_nano", num_classes=4).train()
    norm = model.stage0.bn
    inference_speed(model, batch_size=2, size=32, precision="fp32", device=CPU, seconds=0)
    assert not model.training
    assert norm.num_batches_tracked == 0
    assert not norm.running_mean.any()


def test_a_fast_model_is_called_often_enough_to_fill_the_time():
    """Two calls of a fast model are noise: equal networks once showed a factor of two."""
    model, calls = torch.nn.Identity(), []
    model.register_forward_pre_hook(lambda model, inputs: calls.append(1))
    inference_speed(model, batch_size=2, size=32, precision="fp32", device=CPU, seconds=0)
    few = len(calls)
    inference_speed(model, batch_size=2, size=32, precision="fp32", device=CPU, seconds=0.05)
    assert len(calls) - few > 3 * few
