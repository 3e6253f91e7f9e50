"""torch.compile for training: static shapes, tuned kernels, and a stem whose channels fill a vector.

Inductor picks the block sizes of a Triton kernel by rule; coordinate descent, where it is asked for, tries their
neighbours on the device. What it finds stays in Inductor's cache on disk (`TORCHINDUCTOR_CACHE_DIR`), so only the first
start of a training pays.

For half precision on CUDA cuDNN pads an image's 3 channels with zeros, by kernels of its own, in the forward and in the
backward pass. Here the compiled graph pads: the image in the pass that normalizes it, and the kernel with zeros that no
gradient leaves. What is added to a sum are zeros, so the result is the same.

Weights are inputs of what torch compiles. So a process that trains several seeds compiles once for all that share
modules, shapes and precision. torch looks up what it compiled by the backend, so that is the same object each time.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from repopt.device import own_vectors

CHANNELS = 8  # of bf16 and fp16, 16 bytes
_MODELS = 64  # that one process may compile; torch's own limit is 8, after which it goes on without compiling


def compiled(module: nn.Module, *, tuned: bool) -> nn.Module:
    """The module, compiled for batches of one shape, or what was compiled for another one like it."""
    from torch._dynamo import config  # takes a second to import

    config.cache_size_limit = max(config.cache_size_limit, _MODELS)  # `recompile_limit` from torch 2.7 on
    result: Any = torch.compile(module, dynamic=False, backend=_BACKENDS[tuned])
    return result  # type: ignore[no-any-return]


def _inductor(graph: GraphModule, inputs: list[Any], *, tuned: bool) -> Any:
    from torch._inductor import compile as lowered  # takes a second to import

    if torch.is_autocast_enabled("cuda"):
        pad_few_channels_(graph, CHANNELS)
    on_cpu = any(isinstance(each, Tensor) and each.device.type == "cpu" for each in inputs)
    return lowered(graph, inputs, options={"coordinate_descent_tuning": tuned, **(own_vectors() if on_cpu else {})})


_BACKENDS = {tuned: partial(_inductor, tuned=tuned) for tuned in (False, True)}


def pad_few_channels_(graph: GraphModule, channels: int) -> None:
    """Pads the input and the kernel of each convolution over fewer channels than these, with zeros.

    Args:
        graph: as torch.compile hands it to a backend.
        channels: the fewest that a convolution without groups is left with.
    """
    for node in graph.graph.find_nodes(op="call_function", target=torch.conv2d):
        images, kernel = node.args[:2]
        missing = channels - images.meta["example_value"].shape[1]
        if missing > 0 and _groups(node) == 1:
            behind = (0, 0, 0, 0, 0, missing)
            with graph.graph.inserting_before(node):
                padded = [graph.graph.call_function(F.pad, (each, behind)) for each in (images, kernel)]
            node.args = (*padded, *node.args[2:])
    graph.recompile()


def _groups(convolution: Node) -> Any:
    """The groups of a call of conv2d, its seventh argument."""
    return convolution.kwargs.get("groups", convolution.args[6] if len(convolution.args) > 6 else 1)
