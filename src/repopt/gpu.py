"""What a GPU can and may do: kernels of our own need Triton, which comes with torch's CUDA wheels on Linux."""

import functools
import importlib.util

import torch
from torch import Tensor


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def takes_kernels(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda" and has_triton()


def allow_tf32(allowed: bool) -> None:
    """Whether float32 is computed in TF32, by convolutions and by matrix products alike; torch's defaults differ."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured, so that the host cannot look at values."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
