"""One training step, and evaluation.

A step is forward, loss, backward, clipping, optimizer; on CUDA it is replayed as one graph where it is static. Losses,
hits and whether a loss was not finite are summed up on the device and read now and then: a step never waits for the
host. Evaluation is the mean loss and accuracy over a set, each image counted once, exact over all ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from repopt.data import EvalBatches
from repopt.plans.copying import copied
from repopt.train.distributed import World
from repopt.train.recipe import Recipe

_EAGER_STEPS = 3  # before a graph is captured: compilation, optimizer states, library workspaces

LR_FACTOR = "lr_factor"  # of a param group whose learning rate is a multiple of the recipe's

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """The recipe's precision for a forward pass."""
    dtype = _AUTOCAST.get(recipe.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)


class Totals:
    """The sums over an epoch's steps, on the device."""

    def __init__(self, device: torch.device) -> None:
        # losses, hits, steps, steps before the first bad one
        self.values = torch.zeros(4, dtype=torch.float64, device=device)

    def add_(self, loss: Tensor, hits: Tensor) -> None:
        losses, all_hits, steps, good = self.values.unbind()
        losses += loss
        all_hits += hits
        steps += 1
        good += losses - losses == 0  # once a loss is not finite, neither is the sum

    def restore_(self, ranks: Sequence[Tensor], world: World) -> None:
        """Takes this rank's totals out of a checkpoint; another number of ranks shares them evenly."""
        if len(ranks) == world.size:
            self.values.copy_(ranks[world.rank])
            return
        losses, hits, steps, good = torch.stack([*ranks]).mean(0)
        self.values.copy_(torch.stack([losses, hits * len(ranks) / world.size, steps, good]))

    def first_bad_step(self) -> int | None:
        """The first step, counted from 1, whose loss was not finite; waits for the device."""
        _, _, steps, good = self.values.tolist()
        return None if good == steps else int(good) + 1


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all trainings of a process: cuBLAS keeps 64 MiB for each stream that it ever computed on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class TrainStep:
    """A callable that takes a batch and trains on it.

    Args:
        objective: gives loss and hits of pixels, see `Objective`; compiled or wrapped.
        optimizer: the optimizer.
        clip: clips the gradients.
        recipe: precision, accumulation, clipping.
        device: where.
        graph: replay the step as a CUDA graph.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: Optimizer,
        clip: Callable[[], None],
        recipe: Recipe,
        *,
        device: torch.device,
        graph: bool,
    ) -> None:
        self._objective, self._optimizer, self._clip = objective, optimizer, clip
        self._recipe, self._device = recipe, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.totals = Totals(device)
        self._eager_steps_left = _EAGER_STEPS if graph else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: tuple[Tensor, ...] = ()

    def __call__(self, pixels: Tensor, labels: Tensor, mix: Tensor | None = None) -> None:
        """Trains on a batch.

        Args:
            pixels: images, before normalization.
            labels: of them.
            mix: share of each image that is its own; the rest is the image at the batch's other end.
        """
        batch = (pixels, labels) if mix is None else (pixels, labels, mix)
        if self._graph is not None:
            for static, value in zip(self._static, batch, strict=True):
                static.copy_(value, non_blocking=True)
            self._graph.replay()
        elif self._eager_steps_left < 0:
            self._step(*batch)
        elif self._eager_steps_left:
            self._eager_steps_left -= 1
            self._step_aside(batch)
        else:
            self._capture(batch)

    def _step_aside(self, batch: tuple[Tensor, ...]) -> None:
        """A step on a stream of its own: a capture needs the steps before it to be taken there."""
        side, current = _side_stream(self._device), torch.cuda.current_stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._step(*batch)
        current.wait_stream(side)

    def _capture(self, batch: tuple[Tensor, ...]) -> None:
        self._static = tuple(value.clone() for value in batch)
        self._optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(self._graph):
            self._step(*self._static)
        self._graph.replay()

    def _step(self, pixels: Tensor, labels: Tensor, mix: Tensor | None = None) -> None:
        parts = self._recipe.accumulate
        self._optimizer.zero_grad(set_to_none=True)
        losses, hits = [], []
        for number, part in enumerate(zip(pixels.chunk(parts), labels.chunk(parts), strict=True), start=1):
            with self._without_reduction(last=number == parts):
                with _one_value_in_words(), autocast(self._recipe, self._device):
                    loss, found = self._objective(*part, mix)
                self.scaler.scale(loss / parts).backward()
            losses.append(loss.detach() / parts)
            hits.append(found)
        if self._recipe.clip is not None:
            self.scaler.unscale_(self._optimizer)
            self._clip()
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self.totals.add_(reduce(torch.add, losses), reduce(torch.add, hits))

    def _without_reduction(self, *, last: bool) -> AbstractContextManager[Any]:
        """Ranks average their gradients once a step, after the last part."""
        no_sync = getattr(self._objective, "no_sync", None)
        return nullcontext() if last or no_sync is None else no_sync()


@contextmanager
def _one_value_in_words() -> Iterator[None]:
    """Says what to do where a batch norm is left with one value; torch's error is another one once compiled."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            "a batch norm is left with a single value per channel: train on more images at a time, or on larger ones"
        ) from error


def mixed_share(recipe: Recipe, epoch: int, step: int, device: torch.device) -> Tensor | None:
    """The share that mixup leaves of an image, a function of seed and step; None without mixup."""
    if not recipe.mixup:
        return None
    share = np.random.default_rng((recipe.seed % 2**64, epoch, step)).beta(recipe.mixup, recipe.mixup)
    return torch.tensor(share, dtype=torch.float32, device=device)


def set_lr_(optimizer: Optimizer, lr: float) -> None:
    """Sets the learning rate, inside the tensor that a captured graph reads where there is one."""
    for group in optimizer.param_groups:
        own = lr * group.get(LR_FACTOR, 1)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of an evaluation: mean loss, accuracy in percent, and the number of images."""

    loss: float
    accuracy: float
    images: int


@torch.no_grad()
def evaluate(model: nn.Module, batches: EvalBatches, recipe: Recipe, *, device: torch.device, world: World) -> Score:
    """Evaluates a model in eval mode, with the first rank's buffers, and puts it back into the mode it was in."""
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


_Tensors = tuple[Tensor, ...] | list[Tensor]


def moving_average(model: nn.Module, decay: float) -> AveragedModel | None:
    """The moving average of a model's weights and buffers; None for a decay of 0.

    Whole numbers, such as indices, are the model's own.
    """
    averaged = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def average(own: _Tensors, new: _Tensors, count: Tensor | int) -> None:  # all of one type
        if own[0].is_floating_point() or own[0].is_complex():
            averaged(own, new, count)
        else:
            torch._foreach_copy_(own, new)

    return AveragedModel(copied(model), multi_avg_fn=average, use_buffers=True) if decay else None
