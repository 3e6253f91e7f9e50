"""Files that are decoded by worker processes while the device computes.

What happens to an image in an epoch is a function of the seed, the epoch and the image alone, whichever worker reads
it. Crop, flip and RandAugment are done here, by Pillow; what comes after them (padding, colour jitter, erasing,
normalization) is done on the device in batches.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from repopt.data.augment import Augmentation, crop_box, draw, mirrored, mixed_seed
from repopt.data.decoding import BrokenImageError, centre_crop, pillow, read_rgb
from repopt.data.images import ImageFiles

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Key = tuple[int, int]  # epoch and image
Sample = Tensor | str  # an image, or why there is none

# share of the shorter side that evaluation saw in earlier versions: 224 of 256 pixels
EARLIER_SHARE = 0.875


def as_tensor(image: "PillowImage") -> Tensor:
    """(3, H, W) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class _Samples(Dataset[Sample]):
    def __init__(self, files: ImageFiles, size: int) -> None:
        pillow()  # a missing Pillow is an error here, not in a worker
        # one array of bytes: workers that count references to a million paths would copy them all
        self._paths = np.array([os.fsencode(path) for path in files.paths])
        self.size = size

    def __getitem__(self, key: Key) -> Sample:
        try:
            image = read_rgb(Path(os.fsdecode(self._paths[key[1]])))
        except BrokenImageError as error:
            return str(error)  # a worker's exception would arrive with pages of traceback in its message
        return as_tensor(self.prepared(image, key))

    def prepared(self, image: "PillowImage", key: Key) -> "PillowImage":
        raise NotImplementedError


class EvalSamples(_Samples):
    """Images for evaluation: the middle of each, see `EvalBatches`."""

    def __init__(self, files: ImageFiles, *, size: int, share: float | None) -> None:
        super().__init__(files, size)
        self._share = EARLIER_SHARE if share is None else share

    def prepared(self, image: "PillowImage", key: Key) -> "PillowImage":
        return centre_crop(image, self.size, self._share)


class TrainSamples(_Samples):
    """Images for training, each with its own draw.

    Args:
        files: the training split.
        augmentation: only its crop, flip and RandAugment are done here.
        size: side of the images that are given out.
        seed: of the draws.
    """

    def __init__(self, files: ImageFiles, augmentation: Augmentation, *, size: int, seed: int) -> None:
        super().__init__(files, size)
        self.augmentation, self.seed = augmentation, seed
        self._operations: list[Callable[[PillowImage], PillowImage]] = []
        if augmentation.randaugment is not None and augmentation.randaugment_by == "torchvision":
            self._operations = _rand_augments(augmentation.randaugment[1])

    def prepared(self, image: "PillowImage", key: Key) -> "PillowImage":
        generator = torch.Generator().manual_seed(mixed_seed("file", self.seed, *key))
        draws = draw(1, generator)
        if self.augmentation.resized_crop is None:
            image = centre_crop(image, self.size)
        else:
            shares = crop_box(draws, self.augmentation.resized_crop, image.height, image.width)
            top, left, height, width = (share.item() for share in shares)
            box = (left * image.width, top * image.height, (left + width) * image.width, (top + height) * image.height)
            image = image.resize((self.size, self.size), pillow().Resampling.BILINEAR, box=box)
        if self.augmentation.flip and mirrored(draws).item():
            image = image.transpose(pillow().Transpose.FLIP_LEFT_RIGHT)
        if self.augmentation.randaugment is not None:
            image = self._rand_augmented(image, self.augmentation.randaugment, generator)
        return image

    def _rand_augmented(
        self, image: "PillowImage", randaugment: tuple[int, int], generator: torch.Generator
    ) -> "PillowImage":
        operations, level = randaugment
        if self.augmentation.randaugment_by == "authors":
            from repopt.data.randaugment import rand_augmented  # which imports Pillow

            return rand_augmented(image, operations, level, generator)
        levels = torch.randint(level, (operations,), generator=generator).tolist()
        # torchvision draws from torch's global generator, which is restored afterwards
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.initial_seed())
            for drawn in levels:
                image = self._operations[drawn](image)
        return image


class FileStream:
    """Batches of decoded images on the device.

    Args:
        samples: the images by epoch and number.
        device: where the batches are wanted.
        workers: processes that decode; 0 decodes in this one.
    """

    def __init__(self, samples: Dataset[Sample], *, device: torch.device, workers: int) -> None:
        if workers < 0:
            raise ValueError(f"workers must be at least 0, not {workers}")
        self.device = device
        self._batches = _Batches()
        self._loader: DataLoader[Sample] = DataLoader(
            samples,
            batch_sampler=self._batches,
            num_workers=workers,
            collate_fn=_collated,
            worker_init_fn=_end_with_parent,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(0),  # its own, or torch's global one would be drawn from
        )

    def batches(self, batches: Iterable[list[Key]]) -> Iterator[Tensor]:
        """The images of these keys, a batch at a time; one call at a time."""
        self._batches.keys = batches
        for batch in self._loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            yield batch.to(self.device, non_blocking=True)


class _Batches:
    """The keys of the next pass: the loader and its workers outlive an epoch."""

    keys: Iterable[list[Key]] = ()

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.keys)


def _collated(samples: list[Sample]) -> Tensor | str:
    images = [sample for sample in samples if isinstance(sample, Tensor)]
    if len(images) == len(samples):
        return torch.stack(images)
    return next(sample for sample in samples if isinstance(sample, str))


def _end_with_parent(_: int) -> None:
    """Ends a worker when its parent dies, even in the middle of an image; torch looks only between two batches."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _rand_augments(level: int) -> list[Callable[["PillowImage"], "PillowImage"]]:
    """One operation of torchvision's RandAugment at each level below this one."""
    try:
        from torchvision.transforms import RandAugment  # type: ignore[import-untyped]
    except (ImportError, RuntimeError) as error:  # the latter: a CUDA build of torchvision beside a CPU build of torch
        raise ImportError(
            f"randaugment by torchvision needs it, and it cannot be imported ({error}): pip install -e '.[timm]' from "
            "a checkout, in a build that fits this torch, or take the authors' randaugment"
        ) from error
    return [RandAugment(num_ops=1, magnitude=number) for number in range(level)]
