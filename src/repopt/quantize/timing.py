"""How fast: float eager, float compiled and INT8, in turns, in one process of its own.

The process is another one because a CPU may promise instructions that it does not have (virtual machines do so with
AMX): the process dies then, and is started again with fewer instructions, which the result says.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repopt.models import deploy
from repopt.onnx_files import onnx_runner
from repopt.quantize.pt2e import load_program
from repopt.train.finished import load_run

_FEWER = "AVX512_CORE_VNNI"  # oneDNN's name of the instructions without AMX
_ISA = "ONEDNN_MAX_CPU_ISA"


SPEEDS = ("float_eager", "float_compiled", "int8", "instructions")


def measure_speed(
    run: Path, int8: Path, *, speed_size: int, speed_batch: int, speed_threads: int, repeats: int = 10
) -> dict[str, Any]:
    """Times a run's model and its INT8 file on this machine's CPU.

    Args:
        run: the run folder.
        int8: a .pt2 program or an .onnx file.
        speed_size: side of the images.
        speed_batch: images in a batch.
        speed_threads: of the CPU.
        repeats: timed passes of each, the median of which counts.

    Returns:
        Images a second by `float_eager`, `float_compiled` and `int8`, and `instructions` where the CPU's own could not
        be used.
    """
    call = [sys.executable, "-W", "ignore", "-m", "repopt.quantize.timing", str(run), str(int8)]
    call += [str(number) for number in (speed_size, speed_batch, speed_threads, repeats)]
    threaded = {**os.environ, "OMP_NUM_THREADS": str(speed_threads)}
    done = subprocess.run(call, capture_output=True, text=True, env=threaded)
    if done.returncode == -signal.SIGILL and _ISA not in os.environ:
        done = subprocess.run(call, capture_output=True, text=True, env={**threaded, _ISA: _FEWER})
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        raise RuntimeError(f"the speed could not be measured: {why[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@torch.no_grad()
def _measure(run: Path, int8: Path, size: int, batch_size: int, threads: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True  # constants folded in and weights packed, as torchao's kernels want them
    trained = load_run(run)
    model = deploy(trained.model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch_size, trained.config["options"]["in_chans"], size, size, generator=generator)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "float_eager": model,
        "float_compiled": torch.compile(model),
        "int8": onnx_runner(int8) if int8.suffix == ".onnx" else torch.compile(load_program(int8), dynamic=False),
    }
    for run_once in ways.values():
        run_once(x)  # compiles
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):  # in turns: what else the machine does slows all alike
        for way, run_once in ways.items():
            start = time.perf_counter()
            run_once(x)
            seconds[way].append(time.perf_counter() - start)
    speeds = {way: batch_size / statistics.median(times) for way, times in seconds.items()}
    return {**speeds, "instructions": os.environ.get(_ISA)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("int8", type=Path)
    for name in ("size", "batch_size", "threads", "repeats"):
        parser.add_argument(name, type=int)
    print(json.dumps(_measure(**vars(parser.parse_args()))))
