"""Images per second of a model in inference, on noise held on the device."""

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from repopt.device import arithmetic
from repopt.train.compiling import compiled
from repopt.train.recipe import Precision

_WARM = 3  # calls before the clock starts: compilation, and the choice of kernels
TIMINGS = 3  # their median counts
SECONDS = 0.5  # of a timing, about


def inference_speed(
    model: nn.Module,
    *,
    batch_size: int,
    size: int,
    precision: Precision,
    device: torch.device,
    channels: int = 3,
    seconds: float = SECONDS,
) -> float:
    """Images per second of a model, the median of three timings.

    On CUDA the model is compiled, as in training, and called as a CUDA graph: else a fast GPU would wait for the
    processor to launch the kernels, and equal networks would seem to differ.

    Args:
        model: it is moved to the device and into eval mode.
        batch_size: images per call.
        size: side of the images.
        precision: bf16 converts the weights; tf32 computes in it where the device can.
        device: where.
        channels: of the images.
        seconds: that each timing is to fill, by one call or more.
    """
    if precision == "fp16":
        raise ValueError("inference is timed in fp32, tf32 or bf16: give one of them")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    cuda = device.type == "cuda"
    layout = torch.channels_last if cuda else torch.contiguous_format
    model.eval()
    model = model.to(device=device, dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(batch_size, channels, size, size, device=device, dtype=dtype).to(memory_format=layout)
    torch.compiler.reset()
    called: Callable[[torch.Tensor], object] = compiled(model, tuned=False) if cuda else model
    with arithmetic(tf32=precision != "fp32", benchmark=True), torch.inference_mode():
        for _ in range(_WARM):
            called(images)
        if cuda:
            called = _as_graph(called, images)
        once = _timed(called, images, 1)
        calls = max(1, math.ceil(seconds / once))
        timings = [_timed(called, images, calls) for _ in range(TIMINGS)]
    return calls * batch_size / statistics.median(timings)


def seconds_taken(call: float) -> float:
    """What `inference_speed` takes, where a call takes so long.

    Example:
        >>> seconds_taken(0.1)
        1.9
        >>> seconds_taken(2.0)  # longer than a timing is to be
        14.0
    """
    return (_WARM + 1) * call + TIMINGS * max(call, SECONDS)


def _as_graph(called: Callable[[torch.Tensor], object], images: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """What computes the same for these images, launched at once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        called(images)
    graph.replay()  # the first time it is sent to the device, which takes longer
    torch.cuda.synchronize(images.device)
    return lambda _: graph.replay()


def _timed(called: Callable[[torch.Tensor], object], images: torch.Tensor, calls: int) -> float:
    """Seconds of so many calls."""
    start = time.perf_counter()
    for _ in range(calls):
        called(images)
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return time.perf_counter() - start
