"""The machine: which device to use, what it can do, and what a figure that was measured on it carries."""

import datetime
import functools
import importlib.util
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# of torch's compiler; about TF32 the caller has decided
_ADVICE = "TensorFloat32 tensor cores|\\s*Online softmax is disabled|`torch._prims_common.check` is deprecated"


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


def own_vectors() -> dict[str, Any]:
    """Options of torch's compiler by which it compiles for this processor's vectors, and says so in its cache.

    Without them it takes code from its cache that it wrote for narrower vectors, and compiles that for the wider ones:
    it would write past the ends of arrays.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa  # takes a second to import

    return {"cpp.simdlen": pick_vec_isa().bit_width()}


def takes_kernels(tensor: Tensor) -> bool:
    """Whether Triton kernels run on a tensor's device: a GPU, or a CPU with Triton's interpreter."""
    return has_triton() and (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")


@contextmanager
def arithmetic(*, tf32: bool, benchmark: bool = False) -> Iterator[None]:
    """Computes float32 in TF32 or not, by convolutions and by matrix products alike, as torch's defaults do not.

    Torch's flags, which hold for the whole process, are put back at the end. Until then nothing is heard of what its
    compiler advises or says of itself, in the first forward and the first backward pass.

    Args:
        tf32: whether.
        benchmark: let cuDNN try its kernels on each new shape.
    """
    before = _flags()
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark |= benchmark
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _ADVICE)
            yield
    finally:
        for write, value in before:
            write(value)


def _flags() -> list[tuple[Callable[[Any], None], Any]]:
    """Torch's flags for float32, each as what writes it and its value, in the order to write them in.

    torch before 2.9 lacks the last ones, and later versions refuse to read the first ones where a last one was set.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def flag(place: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        return partial(getattr, place, name), partial(setattr, place, name)

    flags = [flag(cudnn, "benchmark"), flag(cudnn, "allow_tf32"), flag(matmul, "allow_tf32")]
    flags.append((torch.get_float32_matmul_precision, torch.set_float32_matmul_precision))
    if hasattr(cudnn, "conv"):
        last = (matmul, torch.backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
        flags += [flag(place, "fp32_precision") for place in last]
    found = []
    for read, write in flags:
        with suppress(RuntimeError):
            found.append((write, read()))
    return found


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; the host does not wait for it."""
    return (tensor.contiguous().pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured, so that the host cannot look at values."""
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def environment(device: str | torch.device) -> dict[str, str]:
    """Where a figure was taken."""
    return {
        "hardware": hardware(torch.device(device)),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def hardware(device: torch.device) -> str:
    """The name of the GPU, or of the processor with the cores that this machine has of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


@functools.cache
def commit() -> str:
    """The commit of the checkout that this package is part of; `-dirty` where its source or the paper's differs.

    For a copy without git the variable REPOPT_COMMIT has it; an installed package has none.
    """
    given = os.environ.get("REPOPT_COMMIT")
    if given is not None or shutil.which("git") is None:
        return given or ""
    here = Path(__file__)

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(here.parent), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:
        return ""  # in no checkout, or installed inside that of something else
    changed = git("status", "--porcelain", "--", ".", ":/paper/*.py")
    return f"{git('rev-parse', '--short', 'HEAD')}{'-dirty' if changed else ''}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
