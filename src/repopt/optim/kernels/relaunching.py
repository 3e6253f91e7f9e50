"""Launching a kernel again: past Triton's search for it, which takes the host longer than the rest of a step.

At every call Triton looks a kernel up by the types, alignments and constants of all its arguments. Here these are known
to be what they were, so the kernel that the first call compiled is kept, and launched by itself with bare addresses.
"""

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

# Before, a compiled kernel was given the constants no more.
_IS_SUPPORTED = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3)


class Relaunched:
    """A kernel that is launched many times on one device.

    Args:
        kernel: a function of Triton's, whose constants come last.
        programs: how many of it run.
        device: where.
        constants: those of every launch.
    """

    def __init__(self, kernel: Any, programs: int, device: torch.device, constants: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._grid = programs, 1, 1
        self._device = device
        self._constants = constants
        self._found: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(self, tensors: Sequence[Tensor], numbers: Sequence[int] = (), **constants: Any) -> None:
        """Launches the kernel.

        Args:
            tensors: what it reads and writes; for the same constants of the same types and alignments as before.
            numbers: the arguments after the tensors.
            constants: those of this launch.
        """
        if self._device.type == "cuda" and self._device.index != torch.cuda.current_device():
            with torch.cuda.device(self._device):  # Triton launches on the current one
                self._launch(tensors, numbers, constants)
        else:
            self._launch(tensors, numbers, constants)

    def _launch(self, tensors: Sequence[Tensor], numbers: Sequence[int], constants: dict[str, Any]) -> None:
        kind = tuple(constants.values())
        found = self._found.get(kind)
        if found is not None:
            compiled, constant_values = found
            stream = triton.runtime.driver.active.get_current_stream(self._device.index)
            compiled.run(
                *self._grid, stream, compiled.function, compiled.packed_metadata, None, None, None,
                *map(Tensor.data_ptr, tensors), *numbers, *constant_values,
            )  # fmt: skip
            return
        bound = {**self._constants, **constants}
        compiled = self._kernel[self._grid](*tensors, *numbers, **bound)
        if compiled is not None and _IS_SUPPORTED:  # Triton's interpreter compiles nothing
            bound.pop("num_warps", None)  # an option, not an argument
            everything = inspect.signature(self._kernel.fn).bind(*tensors, *numbers, **bound)
            everything.apply_defaults()
            self._found[kind] = compiled, everything.args[len(tensors) + len(numbers) :]
