"""Batches on the device, each a pure function of the seed, the epoch and the step.

Small sets are moved to the device once: a batch is a slice of the epoch's order, a row of draws per image, and one
gather. Large sets stream from files, see `streaming`. A run that resumes in the middle of an epoch gets the batches of
an uninterrupted run, and ranks get the rows that one process would put side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from repopt.data.augment import Augmentation, apply, draw, draw_operations, mixed_seed, scaled, scaling
from repopt.data.images import ImageFiles, Images, middle, resized
from repopt.device import sent
from repopt.plans.wording import counted

if TYPE_CHECKING:
    from repopt.data.streaming import FileStream

Batch = tuple[Tensor, Tensor]

# bytes of batches made at once: small batches are made in groups, as launching kernels costs more than running them
_GROUP = 32 << 20


class TrainBatches:
    """The batches of a training run.

    Args:
        images: the training split of a data set.
        augmentation: what is done to the images.
        batch_size: of all ranks together.
        size: side of the images that are given out.
        mean: of each channel, on a scale from 0 to 1.
        std: deviation of each channel, likewise.
        device: where the batches are wanted.
        seed: of order and augmentation.
        rank: of this process.
        world_size: how many processes share a batch.
        workers: processes that decode files; images in memory need none.

    Example:
        >>> from repopt.data import load_data
        >>> data = load_data("fake:100,10,16")
        >>> batches = TrainBatches(data.train, Augmentation(crop_padding=2, flip=True), batch_size=32, size=16,
        ...                        mean=data.mean, std=data.std, device=torch.device("cpu"), seed=0)
        >>> len(batches), next(batches.epoch(0))[0].shape
        (3, torch.Size([32, 3, 16, 16]))
    """

    def __init__(
        self,
        images: Images | ImageFiles,
        augmentation: Augmentation,
        *,
        batch_size: int,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        _check(batch_size, size, rank, world_size)
        _check_share(batch_size, len(images), world_size)
        self.batch_size, self.size, self.device, self.seed = batch_size, size, device, seed
        share = batch_size // world_size
        self._share = slice(rank * share, (rank + 1) * share)
        self.scaling = scaling(mean, std, device)
        self._count = len(images)
        self._generator = torch.Generator(device)
        self._labels = images.labels.to(device)
        self._augmentation = augmentation
        self._stream: FileStream | None = None
        if isinstance(images, Images):
            self._hold(images, share)
        else:
            self._open(images, workers)

    def _hold(self, images: Images, share: int) -> None:
        """Moves the images to the device, for good."""
        if self._augmentation.randaugment is not None and self._augmentation.randaugment_by == "torchvision":
            raise ValueError(
                "torchvision's RandAugment works on streamed files only, and these images are few enough to be held on "
                "the device: give --randaugment-by authors, or --randaugment None"
            )
        self._pixels = images.pixels.to(self.device)
        self._group = max(1, _GROUP // (4 * share * images.pixels.shape[1] * self.size * self.size))

    def _open(self, files: ImageFiles, workers: int) -> None:
        """Starts workers that decode, crop and flip; the rest of the augmentation is left for the device."""
        from repopt.data.streaming import FileStream, TrainSamples

        samples = TrainSamples(files, self._augmentation, size=self.size, seed=self.seed)
        self._stream = FileStream(samples, device=self.device, workers=workers)
        self._augmentation = replace(self._augmentation, resized_crop=None, flip=False, randaugment=None)

    def __len__(self) -> int:
        return self._count // self.batch_size

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, normalized; arguments as of `pixels`."""
        return ((scaled(pixels, *self.scaling), labels) for pixels, labels in self.pixels(number, start))

    def pixels(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch before normalization: uint8 where pixels are only moved, else 0 to 255 in float32.

        Args:
            number: of the epoch; another number gives another order.
            start: the step to start at.
        """
        if number < 0 or not 0 <= start <= len(self):
            raise ValueError(
                f"there is no step {start} of epoch {number}: epochs count from 0 and have steps 0 to {len(self)}"
            )
        return self._batches(number, start)

    def order(self, number: int) -> Tensor:
        """The order of the images in an epoch, the same for every device and number of ranks."""
        generator = torch.Generator().manual_seed(mixed_seed("order", self.seed, number))
        return torch.randperm(self._count, generator=generator)

    def _batches(self, number: int, start: int) -> Iterator[Batch]:
        steps, used = len(self), len(self) * self.batch_size
        # every rank draws for the whole epoch and keeps its rows of each batch
        self._generator.manual_seed(mixed_seed("draws", self.seed, number))
        draws = draw(used, self._generator).view(steps, self.batch_size, -1)[:, self._share]
        operations = draw_operations(used, self._augmentation, mixed_seed("randaugment", self.seed, number))
        if operations is not None:
            operations = operations.view(steps, self.batch_size, *operations.shape[1:])[:, self._share]
        order = self.order(number)[:used].view(steps, self.batch_size)[:, self._share]
        rows = sent(order, self.device)
        if self._stream is None:
            yield from self._resident(rows, draws, operations, start)
        else:
            keys = ([(number, row) for row in step.tolist()] for step in order[start:])
            yield from self._streamed(self._stream.batches(keys), rows[start:], draws[start:])

    def _resident(self, rows: Tensor, draws: Tensor, operations: Tensor | None, start: int) -> Iterator[Batch]:
        # groups lie where they would in a whole epoch, so that a late start computes the same thing
        for first in range(start - start % self._group, len(self), self._group):
            group = slice(first, first + self._group)
            chosen = rows[group].flatten()
            group_draws = draws[group].flatten(0, 1)
            drawn = None if operations is None else operations[group].flatten(0, 1)
            pixels = apply(self._pixels, group_draws, self._augmentation, self.size, chosen, self.scaling, drawn)
            images, labels = (
                tensor.view(-1, rows.shape[1], *tensor.shape[1:]) for tensor in (pixels, self._labels[chosen])
            )
            for step in range(max(start - first, 0), len(images)):
                yield images[step], labels[step]

    def _streamed(self, streamed: Iterator[Tensor], rows: Tensor, draws: Tensor) -> Iterator[Batch]:
        for pixels, step_rows, step_draws in zip(streamed, rows, draws, strict=True):
            augmented = apply(pixels, step_draws, self._augmentation, self.size, scaling=self.scaling)
            yield augmented, self._labels[step_rows]


class EvalBatches:
    """A data set in order, each image once over all ranks, the last batch as short as it comes.

    Args:
        images: the validation split of a data set.
        batch_size: of one rank.
        size: side of the images that are given out; others are resized.
        mean: of each channel, on a scale from 0 to 1.
        std: deviation of each channel, likewise.
        device: where the batches are wanted.
        rank: of this process, which takes every `world_size`-th batch.
        world_size: how many processes share the data.
        workers: processes that decode files; images in memory need none.
        share: of an image's shorter side that is seen, in the middle; None is 1, but 7/8 for streamed files, as in
            earlier versions.
    """

    def __init__(
        self,
        images: Images | ImageFiles,
        *,
        batch_size: int,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        share: float | None = 1.0,
    ) -> None:
        _check(batch_size, size, rank, world_size)
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"share must be more than 0 and at most 1, not {share}")
        self.size, self.device, self._share = size, device, share
        firsts = range(0, len(images), batch_size)[rank::world_size]
        self._rows = [range(first, min(first + batch_size, len(images))) for first in firsts]
        self._scaling = scaling(mean, std, device)
        self._labels = images.labels.to(device)
        self._stream: FileStream | None = None
        if isinstance(images, Images):
            self._pixels = middle(images.pixels, 1.0 if share is None else share).to(device)
        else:
            self._open(images, workers)

    def _open(self, files: ImageFiles, workers: int) -> None:
        from repopt.data.streaming import EvalSamples, FileStream

        samples = EvalSamples(files, size=self.size, share=self._share)
        self._stream = FileStream(samples, device=self.device, workers=workers)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Batch]:
        streamed = self._stream.batches([(0, row) for row in rows] for rows in self._rows) if self._stream else None
        for rows in self._rows:
            here = slice(rows.start, rows.stop)
            pixels = resized(self._pixels[here], self.size) if streamed is None else next(streamed)
            yield scaled(pixels, *self._scaling), self._labels[here]


def _check(batch_size: int, size: int, rank: int, world_size: int) -> None:
    if batch_size < 1 or size < 1:
        raise ValueError(f"batch_size and size must be at least 1, not {batch_size} and {size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0 to {world_size - 1} with {world_size} processes, not {rank}")


def _check_share(batch_size: int, count: int, world_size: int) -> None:
    if batch_size > count:
        raise ValueError(
            f"a batch of {batch_size} is larger than the data of {counted(count, 'image')}: give a batch size of "
            f"at most {count}"
        )
    if batch_size % world_size:
        raise ValueError(
            f"a batch of {batch_size} cannot be shared by {world_size} processes: give a batch size that is a multiple "
            f"of {world_size}"
        )
