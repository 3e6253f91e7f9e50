import pytest
import torch

import repopt
from repopt.bench.inference import _as_graph, inference_speed

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


@pytest.mark.parametrize(("call", "calls"), [(0.01, 50), (0.4, 2), (3.0, 1)])
def test_a_timing_fills_half_a_second_by_one_call_or_more(call, calls, monkeypatch):
    """Two calls of a fast model are noise: equal networks once showed a factor of two."""
    model, asked = torch.nn.Identity(), []
    monkeypatch.setattr(
        "repopt.bench.inference._timed", lambda called, images, times: asked.append(times) or call * times
    )
    found = inference_speed(model, batch_size=2, size=32, precision="fp32", device=CPU)
    assert asked == [1, calls, calls, calls]
    assert found == pytest.approx(2 / call)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_cuda_a_call_is_launched_as_one_graph():
    """Whatever the model, a timed call computes what the model does, and runs none of its Python."""
    model, images = torch.nn.Conv2d(3, 4, 3).cuda(), torch.randn(2, 3, 8, 8, device="cuda")
    seen, found = [], {}

    def called(images):
        seen.append(images)
        found["output"] = model(images)

    with torch.inference_mode():
        for _ in range(3):
            called(images)
        graph = _as_graph(called, images)
        captured = len(seen)
        images.normal_()
        graph(images)
        assert len(seen) == captured
        assert torch.equal(found["output"], model(images))
    speed = inference_speed(
        repopt.create_model("repopt_vgg_nano", num_classes=4),
        batch_size=2,
        size=32,
        precision="bf16",
        device=torch.device("cuda"),
        seconds=0.01,
    )
    assert 0 < speed < float("inf")
