"""How fast a model is: float eager, float compiled and INT8, in turns, in one process of its own.

A CPU may report instructions that it does not have, as virtual machines do with AMX. The process dies then, and is
started again with fewer instructions; the result says so.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repopt.device import own_vectors
from repopt.models import as_deployed
from repopt.quantize.onnx_files import onnx_runner
from repopt.quantize.programs import load_program
from repopt.train.runs import load_run

_FEWER = "AVX512_CORE_VNNI"  # oneDNN's name of the instructions without AMX
_ISA = "ONEDNN_MAX_CPU_ISA"

SPEEDS = ("float_eager", "float_compiled", "int8")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """On what speeds are measured.

    Attributes:
        batch: images in a batch.
        size: side of the images, the run's unless given.
        threads: of the CPU.
        repeats: timed passes of each model; their median counts.
    """

    batch: int = 32
    size: int | None = None
    threads: int = 1
    repeats: int = 10

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 while speeds are measured, not {value}")


def measure_speed(run: Path, int8: Path, timing: Timing, *, trust: bool = False) -> dict[str, Any]:
    """Times a run's model and its INT8 file on this machine's CPU.

    Args:
        run: the run folder.
        int8: the file that was written: an INT8 program or an .onnx file.
        timing: on what; its size must be given.
        trust: as `load_run` takes it.

    Returns:
        Images per second by the names in `SPEEDS`, and `instructions` if the CPU's own could not be used.

    Raises:
        RuntimeError: it could not be measured; the message says why.
    """
    # -P: nothing is imported from the working directory
    call = [sys.executable, "-P", "-W", "ignore", "-m", "repopt.quantize.timing", str(run), str(int8)]
    call += [str(number) for number in (timing.size, timing.batch, timing.threads, timing.repeats, int(trust))]
    threaded = {**os.environ, "OMP_NUM_THREADS": str(timing.threads)}
    done, instructions = subprocess.run(call, capture_output=True, text=True, env=threaded), None
    if done.returncode == -signal.SIGILL and _ISA not in os.environ:
        instructions = _FEWER
        done = subprocess.run(call, capture_output=True, text=True, env={**threaded, _ISA: instructions})
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise RuntimeError(f"the speed could not be measured: {why[-1]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "instructions": instructions}


@torch.no_grad()
def _measure(
    run: Path, int8: Path, size: int, batch_size: int, threads: int, repeats: int, trust: int
) -> dict[str, float]:
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True  # folds constants and packs weights, as torchao's kernels need
    trained = load_run(run, trust=bool(trust))
    model = as_deployed(trained.model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch_size, len(trained.config["mean"]), size, size, generator=generator)
    own: Any = own_vectors()
    is_onnx = int8.suffix == ".onnx"
    quantized = onnx_runner(int8) if is_onnx else torch.compile(load_program(int8), dynamic=False, options=own)
    called = (model, torch.compile(model, options=own), quantized)
    timed: dict[str, Callable[[Tensor], Tensor]] = dict(zip(SPEEDS, called, strict=True))
    for forward in timed.values():
        forward(x)  # compiles
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats):  # in turns: what else the machine does slows all alike
        for name, forward in timed.items():
            start = time.perf_counter()
            forward(x)
            seconds[name].append(time.perf_counter() - start)
    return {name: batch_size / statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("int8", type=Path)
    for name in ("size", "batch_size", "threads", "repeats", "trust"):
        parser.add_argument(name, type=int)
    print(json.dumps(_measure(**vars(parser.parse_args()))))
