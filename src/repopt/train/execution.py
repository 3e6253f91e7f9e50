"""How the steps of a training are computed: what the recipe leaves open, settled for a device."""

from dataclasses import dataclass

import torch

from repopt.data import DataSet, ImageFiles
from repopt.train.distributed import World
from repopt.train.methods import Subject, can_be_captured
from repopt.train.recipe import Recipe, on_cuda_unless_given

_WORTH_TUNING = 20_000  # steps: tuning saves 2 to 3 ms of 38 and takes a minute more, on an H200 with RepOpt-VGG-B1


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How steps are computed: the recipe's open choices, settled for a device, a subject and its data.

    Attributes:
        size: side of the training images.
        eval_size: side of the images in evaluation.
        graph: replay the step as a CUDA graph.
        compiled: torch.compile the model.
        tuned: try kernels on the device while it is compiled.
        channels_last: memory format of the images.
    """

    size: int
    eval_size: int
    graph: bool
    compiled: bool
    tuned: bool
    channels_last: bool


def settled(recipe: Recipe, subject: Subject, data: DataSet, device: torch.device, world: World) -> Execution:
    """Settles what the recipe leaves open.

    Raises:
        ValueError: the recipe asks for what these processes, this device or this optimizer cannot do.
    """
    if recipe.batch_size % (world.size * recipe.accumulate):
        raise ValueError(
            f"a batch of {recipe.batch_size} cannot be computed by {world.size} processes in {recipe.accumulate} equal "
            "parts each"
        )
    alone = device.type == "cuda" and world.size == 1 and not isinstance(data.train, ImageFiles)
    static = alone and recipe.precision != "fp16" and can_be_captured(subject, recipe)
    if recipe.graph and not static:
        raise ValueError(
            "only a step on one CUDA device, with data held there, a precision other than fp16 and an optimizer "
            "that torch calls capturable, can be replayed as a graph: leave --graph out"
        )
    size = recipe.size or data.size
    steps = recipe.epochs * len(data.train) // recipe.batch_size
    return Execution(
        size=size,
        eval_size=recipe.eval_size or size,
        graph=static if recipe.graph is None else recipe.graph,
        compiled=on_cuda_unless_given(recipe.compile, device),
        tuned=steps >= _WORTH_TUNING if recipe.tune is None else recipe.tune,
        channels_last=on_cuda_unless_given(recipe.channels_last, device),
    )
