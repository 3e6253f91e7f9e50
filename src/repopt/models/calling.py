"""Models on a batch of images: what they return for it, and the one to export them with."""

from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from repopt.plans.wording import first_line


@torch.no_grad()
def outputs_for(model: nn.Module, images: Tensor) -> Any:
    """What a model returns for a batch, which it may change; one that it does not take is an error in one sentence."""
    try:
        return model(images.clone())
    except Exception as error:  # of any code at all
        kind = str(images.dtype).removeprefix("torch.")
        raise ValueError(
            f"this {type(model).__name__} does not take a batch of {' x '.join(map(str, images.shape))} {kind} "
            f"({first_line(error)})"
        ) from error


def any_batch(model: nn.Module, size: Any) -> tuple[Any, ...]:
    """The dynamic shapes that torch.export takes for a batch of images: their number is a `Dim`."""
    shapes = ({0: size},)
    first = next(iter(signature(model.forward).parameters.values()))
    return (shapes,) if first.kind is Parameter.VAR_POSITIONAL else shapes  # which torch takes for one tuple


def two_of(images: Tensor) -> Tensor:
    """A batch with the first image twice, to export a model with: a batch of one would be taken for a constant."""
    return images[:1].repeat(2, *[1] * (images.ndim - 1))
