"""Many images at once, decoded by processes into memory that they share with this one.

A small JPEG takes as long in Python as in the decoder, so threads would wait for each other. The processes run
`decoding.work` in a bare interpreter: no fork beside CUDA's threads, no import of the user's script or of torch, and
nothing from the working directory. They take tasks from one pipe, and end when it is empty or this process is gone;
on Linux at once, even in the middle of an image.
"""

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from repopt.data import decoding

_TRIAL = 0.1  # seconds of decoding here, which tell how long the rest would take
_WORTH = 0.5  # seconds of work here for which starting processes pays
_HERE = 4  # images decoded here between two looks at the clock
_LARGEST_TASK = 256  # images
_TASKS = 16  # at least, for each process: then they end at about the same time
_START = """
import ctypes, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when the parent dies
sys.path.append(sys.argv[2])
runpy.run_path(sys.argv[3])["work"]()
"""


def decode(paths: Sequence[Path], size: int, *, processes: int | None = None) -> tuple[Tensor, dict[int, str]]:
    """Decodes many images in parallel.

    Args:
        paths: of the files.
        size: side of the middle that is kept.
        processes: how many decode; unless given, one per core, or only this one if the work is done in a moment.

    Returns:
        (N, 3, size, size) uint8 without the broken images, and why those are broken by their place among the paths.
    """
    if not paths:
        return torch.empty(0, 3, size, size, dtype=torch.uint8), {}
    with _memory_file() as file:
        file.truncate(len(paths) * 3 * size * size)
        broken = _decode(paths, size, file, processes)
        memory = mmap.mmap(file.fileno(), 0)
    pixels = torch.frombuffer(memory, dtype=torch.uint8).view(len(paths), 3, size, size)
    return pixels[[place not in broken for place in range(len(paths))]] if broken else pixels, broken


def find_broken(paths: Sequence[Path], *, processes: int | None = None) -> dict[int, str]:
    """Why images cannot be decoded, by their place among the paths."""
    with _memory_file() as file:
        return _decode(paths, 0, file, processes)


def _decode(paths: Sequence[Path], size: int, file: IO[bytes], processes: int | None) -> dict[int, str]:
    """Decodes images into a file; at size 0 it only looks whether they can be decoded."""
    decoding.pillow()  # a missing Pillow is an error here, not in a process
    broken, done = dict[int, str](), 0
    if processes is None:
        processes = cores()
        memory = mmap.mmap(file.fileno(), 0) if size else None
        start = time.perf_counter()
        while done < len(paths) and (processes == 1 or _is_short(time.perf_counter() - start, done, len(paths))):
            broken |= decoding.decode_into(memory, paths[done : done + _HERE], size, done)
            done += _HERE
    if done < len(paths):
        broken |= _in_processes(paths, done, size, file, processes)
    return dict(sorted(broken.items()))


def cores() -> int:
    """The cores that this process may use; 1 where it cannot start others."""
    if not sys.executable or hasattr(sys, "frozen") or os.name != "posix":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_short(seconds: float, done: int, count: int) -> bool:
    """Whether the images that are left are quicker decoded here, or it is too early to tell."""
    return not done or seconds < _TRIAL or seconds / done * (count - done) < _WORTH


def _in_processes(paths: Sequence[Path], first: int, size: int, file: IO[bytes], count: int) -> dict[int, str]:
    """Decodes the images from the first one on, by processes that are gone afterwards."""
    broken = dict[int, str]()
    with ExitStack() as stack:
        names = stack.enter_context(_memory_file())
        tasks = _tasks(paths, first, max(1, min(_LARGEST_TASK, (len(paths) - first) // (count * _TASKS))), names)
        source, sink = (
            stack.enter_context(open(end, mode, 0)) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        workers = []
        for _ in range(min(count, len(tasks))):
            workers.append(stack.enter_context(_start(size, tasks=source, names=names, pixels=file)))
            stack.callback(workers[-1].kill)
        source.close()  # so that writing fails once no worker is left to read
        with suppress(BrokenPipeError):
            for task in tasks:  # one by one: what is written at once is read at once
                sink.write(task)
        sink.close()
        for worker in workers:
            broken |= _result(worker)
    return broken


def _tasks(paths: Sequence[Path], first: int, images: int, names: IO[bytes]) -> list[bytes]:
    """Tasks of so many images, whose paths are written to a file."""
    tasks = []
    for place in range(first, len(paths), images):
        listed = b"\0".join(os.fsencode(path) for path in paths[place : place + images])
        tasks.append(decoding.TASK.pack(place, names.tell(), len(listed)))
        names.write(listed)
    names.flush()
    return tasks


def _start(size: int, **files: IO[bytes]) -> "subprocess.Popen[bytes]":
    from PIL import Image, ImageFile

    job = {
        "size": size,
        "parent": os.getpid(),
        "limits": [Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES],
        **{name: file.fileno() for name, file in files.items()},
    }
    # -I and -S: nothing but the standard library is on the path, to which the folder of this Pillow is added
    home = Path(Image.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, json.dumps(job), str(home), decoding.__file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[file.fileno() for file in files.values()],
    )


def _result(worker: "subprocess.Popen[bytes]") -> dict[int, str]:
    printed, errors = worker.communicate()
    if worker.returncode:
        reason = (errors.decode(errors="replace").strip().splitlines() or [f"exit code {worker.returncode}"])[-1]
        raise RuntimeError(
            f"a process that decodes images failed ({reason}): see whether memory is short, and whether this Python "
            "can import PIL.Image"
        )
    return {int(place): reason for place, reason in json.loads(printed).items()}


def _memory_file() -> IO[bytes]:
    """A file in memory, or a temporary one where the system has none; gone once nobody has it open or mapped."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("repopt"), "w+b")
    return tempfile.TemporaryFile()
