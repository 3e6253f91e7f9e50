"""What a GPU can and may do: kernels of our own need Triton, which comes with torch's CUDA wheels on Linux."""

import functools
import importlib.util

import torch
from torch import Tensor


def chosen_device(name: str) -> torch.device:
    """The device that a user names: `cpu`, `cuda`, or `auto` for CUDA where there is one.

    Raises:
        ValueError: there is no CUDA device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was built without CUDA: use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


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
