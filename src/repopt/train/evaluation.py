"""Evaluation: mean loss and accuracy over a set, each image counted once, over all ranks exactly."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from repopt.data import EvalBatches
from repopt.train.distributed import World
from repopt.train.recipe import Recipe
from repopt.train.step import autocast


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an evaluation found: mean loss, accuracy in percent, and on how many images."""

    loss: float
    accuracy: float
    images: int


@torch.no_grad()
def evaluate(model: nn.Module, batches: EvalBatches, recipe: Recipe, *, device: torch.device, world: World) -> Score:
    """Evaluates a model in eval mode, and leaves it in the mode that it was in; all ranks with the first's buffers."""
    world.share_buffers(model)
    training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for x, y in batches:
        with autocast(recipe, device):
            logits = model(x)
        logits = logits.double()
        sums[0] += F.cross_entropy(logits, y, reduction="sum")
        sums[1] += (logits.argmax(1) == y).sum()
        sums[2] += len(y)
    model.train(training)
    loss, hits, images = world.sum(sums).tolist()
    return Score(loss=loss / images, accuracy=100 * hits / images, images=int(images))
