"""Labelled images: pixels in memory for small sets, the names of files for large ones.

Every source of data gives `Splits`: the classes, a training split and a validation split.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Broken = Literal["raise", "skip"]  # what is done about files that cannot be decoded

_SPLIT_SEED = 2023


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Decoded images.

    Attributes:
        pixels: (N, C, H, W) uint8, on the CPU.
        labels: (N,) int64.
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"the pixels are {self.pixels.dtype} of shape {tuple(self.pixels.shape)}: they must be torch.uint8 of "
                "shape (images, channels, height, width)"
            )
        _check_labels(self.labels, len(self.pixels))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Images":
        """Some of the images."""
        return Images(pixels=self.pixels[rows], labels=self.labels[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images that are decoded when they are asked for.

    Attributes:
        paths: of the files.
        labels: (N,) int64.
    """

    paths: tuple[Path, ...]
    labels: Tensor

    def __post_init__(self) -> None:
        _check_labels(self.labels, len(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Tensor) -> "ImageFiles":
        """Some of the files."""
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        return ImageFiles(paths=tuple(self.paths[row] for row in rows.tolist()), labels=self.labels[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """What a source holds.

    Attributes:
        classes: names, by label.
        size: side of the images.
        train: the training split.
        val: the validation split.
        digest: of the list of files; None where the pixels are there to be digested.
        listing: digest of the names and labels of all files, broken ones included; None where there are no files.
        held_out: digest of the names that were held out of the training images; None for a validation split of its own.
    """

    classes: tuple[str, ...]
    size: int
    train: Images | ImageFiles
    val: Images | ImageFiles
    digest: str | None = None
    listing: str | None = None
    held_out: str | None = None


def together(first: Images | ImageFiles, second: Images | ImageFiles) -> Images | ImageFiles:
    """The images of two splits, both in memory or both files."""
    labels = torch.cat([first.labels, second.labels])
    if isinstance(first, ImageFiles) and isinstance(second, ImageFiles):
        return ImageFiles(paths=first.paths + second.paths, labels=labels)
    if isinstance(first, Images) and isinstance(second, Images):
        return Images(pixels=torch.cat([first.pixels, second.pixels]), labels=labels)
    raise TypeError("one split is in memory and the other is files")


def balanced(labels: Tensor, count: int) -> Tensor:
    """The rows of `count` images, balanced over the classes: always the same ones, in ascending order.

    Args:
        labels: of all images.
        count: how many; all of them if there are fewer.
    """
    by_class, turn = _turns(labels)
    return by_class[turn.argsort(stable=True)][:count].sort().values


def tenth(labels: Tensor) -> Tensor:
    """Which images are held out, as a mask: a tenth of each class, at least one of two; always the same ones."""
    by_class, turn = _turns(labels)
    sizes = torch.bincount(labels)
    wanted = (sizes / 10).round().clamp(min=1).minimum(sizes - 1)
    return torch.zeros(len(labels), dtype=torch.bool).index_put_((by_class,), turn < wanted[labels[by_class]])


def _turns(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows shuffled and put in order of their class, and each one's turn: 0 for the first of its class."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = torch.bincount(labels)
    first = (sizes.cumsum(0) - sizes)[labels[by_class]]
    return by_class, torch.arange(len(labels)) - first


def resized(pixels: Tensor, size: int) -> Tensor:
    """Images of another side, as float32 from 0 to 255; unchanged if they have it already."""
    if tuple(pixels.shape[2:]) == (size, size):
        return pixels
    return F.interpolate(pixels.float(), (size, size), mode="bilinear", antialias=True)


def middle(pixels: Tensor, share: float) -> Tensor:
    """The middle of each image, this share of its sides to the nearest pixel."""
    height, width = (max(1, round(side * share)) for side in pixels.shape[2:])
    top, left = (pixels.shape[2] - height) // 2, (pixels.shape[3] - width) // 2
    return pixels[:, :, top : top + height, left : left + width]


def resized_bytes(pixels: Tensor, size: int) -> Tensor:
    """Images of another side, rounded to uint8, a thousand at a time."""
    if tuple(pixels.shape[2:]) == (size, size):
        return pixels
    chunks = (resized(pixels[first : first + 1000], size) for first in range(0, len(pixels), 1000))
    return torch.cat([as_bytes(chunk) for chunk in chunks])


def as_bytes(pixels: Tensor) -> Tensor:
    """Pixels from 0 to 255, rounded to uint8."""
    return pixels if pixels.dtype == torch.uint8 else pixels.round().clamp_(0, 255).to(torch.uint8)


def _check_labels(labels: Tensor, count: int) -> None:
    if labels.dtype != torch.int64 or tuple(labels.shape) != (count,):
        raise ValueError(
            f"the labels are {labels.dtype} of shape {tuple(labels.shape)}: {count} images need torch.int64 of shape "
            f"({count},)"
        )
