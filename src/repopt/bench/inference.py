"""Images per second of a model in inference, on noise held on the device."""

import statistics
import time

import torch
from torch import nn

from repopt.device import arithmetic
from repopt.train.recipe import Precision

_WARM = 3  # calls before the clock starts: compilation, and the choice of kernels
TIMINGS = 3  # their median counts


def inference_speed(
    model: nn.Module,
    *,
    batch_size: int,
    size: int,
    precision: Precision,
    device: torch.device,
    steps: int,
    channels: int = 3,
) -> float:
    """Images per second of a model, the median of three timings; compiled on CUDA, as in training.

    Args:
        model: it is moved to the device and into eval mode.
        batch_size: images per step.
        size: side of the images.
        precision: bf16 converts the weights; tf32 computes in it where the device can.
        device: where.
        steps: in each timing.
        channels: of the images.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if precision == "fp16":
        raise ValueError("inference is timed in fp32, tf32 or bf16: give one of them")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    cuda = device.type == "cuda"
    layout = torch.channels_last if cuda else torch.contiguous_format
    model = model.eval().to(device=device, dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(batch_size, channels, size, size, device=device, dtype=dtype).to(memory_format=layout)
    torch.compiler.reset()
    called = torch.compile(model) if cuda else model
    with arithmetic(tf32=precision != "fp32", benchmark=True), torch.inference_mode():
        for _ in range(_WARM):
            called(images)
        _wait(device)
        seconds = []
        for _ in range(TIMINGS):
            start = time.perf_counter()
            for _ in range(steps):
                called(images)
            _wait(device)
            seconds.append(time.perf_counter() - start)
    return steps * batch_size / statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
