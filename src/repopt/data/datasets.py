"""Data by name: `digits`, `cifar10:PATH`, `cifar100:PATH`, `folder:PATH` or just `PATH`, `fake:N,C,SIZE`.

The digits are UCI's handwritten ones: 1,797 real images of 8x8 pixels that ship inside the package. By E. Alpaydin and
C. Kaynak, under CC BY 4.0; DIGITS_LICENSE.txt beside this file has the full text.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from repopt.data.images import Broken, ImageFiles, Images, Splits, balanced, resized_bytes
from repopt.plans.choices import check_choice

_SOURCES = {
    "digits": "digits",
    "cifar10": "cifar10:PATH",
    "cifar100": "cifar100:PATH",
    "folder": "folder:PATH",
    "fake": "fake:N,C,SIZE",
}
DIGITS = Path(__file__).parent / "digits.npz"
_DIGITS_SIZE, _DIGITS_VAL, _BRIGHTEST = 32, 360, 16
_FAKE_SEED = 0
# ImageNet's, for sets of files: measuring their own would take a pass over all of them
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Images to train and to validate on.

    Attributes:
        name: the source that it was loaded from.
        classes: names, by label.
        channels: of an image.
        size: side of the training images.
        train: the training split.
        val: the validation split.
        mean: of each channel, on a scale from 0 to 1: the training split's own, or ImageNet's for files.
        std: deviation of each channel, likewise.
        digest: sha256 of pixels and labels, or of the list of files with their sizes.
        listing: sha256 of the names and labels of all files, broken ones included; None for data of other sources.
        held_out: sha256 of the names of the validation images, where these were held out of the training images.
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    size: int
    train: Images | ImageFiles
    val: Images | ImageFiles
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    listing: str | None = None
    held_out: str | None = None


def load_data(
    source: str = "digits",
    *,
    size: int | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    broken: Broken = "raise",
    eval_size: int | None = None,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """Loads a data set by name.

    Args:
        source: `digits`, `cifar10:PATH`, `cifar100:PATH`, `folder:PATH`, `fake:N,C,SIZE`, or the path of a folder.
        size: side of the images; 32 for digits and CIFAR, see `read_folder` for a folder.
        limit: keep that many images of each split, balanced over the classes and always the same ones.
        cache: folder for decoded images; `$REPOPT_CACHE` or `~/.cache/repopt` unless given. Only `folder:` has any.
        broken: what a broken image does: `raise` stops with its name, `skip` leaves it out with a warning.
        eval_size: side of a folder's validation images where it is more than `size`; other sources have none larger.
        classes: a folder's, of which it may hold some; those that it holds unless given. Other sources have their own.

    Raises:
        FileNotFoundError: there is nothing at PATH.
        ValueError: what is there cannot be used; the message says why.

    Example:
        >>> data = load_data("fake:100,10,16")
        >>> len(data.train), len(data.val), data.size
        (100, 10, 16)
    """
    for name, number in (("size", size), ("limit", limit), ("eval_size", eval_size)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    check_choice("broken", broken, get_args(Broken))
    if classes is not None and (isinstance(classes, str) or not classes or len({*classes}) < len(classes)):
        raise ValueError(f"classes must be names, each once, in the order of their labels, not {classes!r}")
    splits = _read(source, size, limit, cache, broken, eval_size, classes)
    asked = size if splits.listing is None else None  # files were decoded at the side that was asked for
    train, val = (_cut(split, asked, limit) for split in (splits.train, splits.val))
    mean, std = _statistics(train)
    return DataSet(
        name=source,
        classes=splits.classes,
        channels=train.pixels.shape[1] if isinstance(train, Images) else 3,
        size=size or splits.size,
        train=train,
        val=val,
        mean=mean,
        std=std,
        digest=splits.digest or _digest(train, val),
        listing=splits.listing,
        held_out=splits.held_out,
    )


def _read(
    source: str,
    size: int | None,
    limit: int | None,
    cache: Path | None,
    broken: Broken,
    eval_size: int | None,
    classes: Sequence[str] | None,
) -> Splits:
    if not isinstance(source, str):
        raise TypeError(f"load_data takes the name of a data set, such as 'digits', not a {type(source).__name__}")
    kind, rest = known_kind(source)
    if bool(rest) != (":" in _SOURCES[kind]):
        raise ValueError(f"{source!r} is incomplete or has too much: write {_SOURCES[kind]!r}")
    if classes is not None and kind != "folder":
        raise ValueError(f"{source!r} has classes of its own: leave classes out")
    if kind == "digits":
        return _digits(size or _DIGITS_SIZE)
    if kind == "fake":
        return _fake(rest, size)
    path = Path(rest).expanduser()
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise ValueError(f"{rest!r} is neither a file nor a folder: give the images' own")  # /dev/zero never ends
    if kind == "folder":
        from repopt.data.folder import read_folder

        return read_folder(
            path, size=size, limit=limit, cache=cache, broken=broken, eval_size=eval_size, classes=classes
        )
    from repopt.data.cifar import read_cifar

    return read_cifar(path, kind)


def kind_of(source: str) -> tuple[str, str]:
    """What kind of data a name asks for, and the rest of it; a path alone is that of a folder."""
    kind, _, rest = source.partition(":")
    return ("folder", source) if kind not in _SOURCES and Path(source).expanduser().is_dir() else (kind, rest)


def is_same_folder(one: str, other: str) -> bool:
    """Whether two names of data lead to one folder."""
    (kind, path), (other_kind, other_path) = kind_of(one), kind_of(other)
    there, also = (Path(each).expanduser().resolve() for each in (path, other_path))
    return kind == other_kind == "folder" and there == also


def is_here(source: str) -> bool:
    """Whether the file or folder that a source names is there, as seen from the working directory; noise always is."""
    kind, rest = kind_of(source)
    return kind in ("digits", "fake") or (kind in _SOURCES and Path(rest).expanduser().exists())


def known_kind(source: str) -> tuple[str, str]:
    """As `kind_of`; raises if there is no such kind of data, and no such folder."""
    kind, rest = kind_of(source)
    if kind not in _SOURCES:
        near = difflib.get_close_matches(kind, _SOURCES, n=1)
        known = ", ".join(_SOURCES.values())
        raise ValueError(
            f"{source!r} is not a source of data{f' (did you mean {near[0]!r}?)' if near else ''}, nor a folder: give "
            f"one of {known}, or the path of a folder"
        )
    return kind, rest


def _check_memory(source: str, images: float, size: int) -> None:
    wanted, there = images * 3 * size * size, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > there:
        raise ValueError(
            f"{source!r} at {size} x {size} pixels would take {wanted / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB: take fewer or smaller images"
        )


def _digits(size: int) -> Splits:
    """The digits enlarged to RGB images: 1,437 to train on and 360 to validate on, 36 of each class."""
    _check_memory("digits", 1797 * 8, size)  # they are floats on the way
    with np.load(DIGITS) as file:
        raw, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
    grey = F.interpolate(raw[:, None].float() * (255 / _BRIGHTEST), (size, size), mode="bilinear")
    pixels = grey.round_().clamp_(0, 255).to(torch.uint8).repeat(1, 3, 1, 1)
    images, val = Images(pixels=pixels, labels=labels), torch.zeros(len(labels), dtype=torch.bool)
    val[balanced(labels, _DIGITS_VAL)] = True
    return Splits(classes=tuple("0123456789"), size=size, train=images.take(~val), val=images.take(val))


def _fake(text: str, size: int | None) -> Splits:
    numbers = re.fullmatch(r"(\d+),(\d+),(\d+)", text)
    if not numbers or not all(map(int, numbers.groups())):
        raise ValueError(
            f"'fake:{text}' must be three positive numbers, as in 'fake:1000,10,32': training images, classes and side"
        )
    count, classes, side = map(int, numbers.groups())
    _check_memory(f"fake:{text}", max(classes, count) * 1.1, size or side)
    generator = torch.Generator().manual_seed(_FAKE_SEED)

    def noise(images: int) -> Images:
        shape = (images, 3, size or side, size or side)
        pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        return Images(pixels=pixels, labels=torch.arange(images) % classes)

    train, val = noise(count), noise(max(classes, count // 10))
    return Splits(classes=tuple(map(str, range(classes))), size=size or side, train=train, val=val)


def _cut(split: Images | ImageFiles, size: int | None, limit: int | None) -> Images | ImageFiles:
    """The split with `limit` images of side `size`."""
    if limit is not None and limit < len(split):
        split = split.take(balanced(split.labels, limit))
    if size is not None and isinstance(split, Images):
        split = Images(pixels=resized_bytes(split.pixels, size), labels=split.labels)
    return split


def _statistics(train: Images | ImageFiles) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, on a scale from 0 to 1."""
    if isinstance(train, ImageFiles):
        return _IMAGENET_MEAN, _IMAGENET_STD
    channels = train.pixels.shape[1]
    sums = torch.zeros(2, channels, dtype=torch.float64)
    for first in range(0, len(train), 500):
        values = train.pixels[first : first + 500].float()
        sums[0] += values.sum((2, 3)).double().sum(0)
        sums[1] += values.square_().sum((2, 3)).double().sum(0)
    mean, square = sums / (train.pixels.numel() / channels)
    # a channel of one colour has no deviation: one byte stands in for it
    std = (square - mean.square()).clamp(min=1.0).sqrt()
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _digest(*splits: Images | ImageFiles) -> str:
    digest = hashlib.sha256()
    for split in splits:
        if isinstance(split, Images):
            digest.update(str(tuple(split.pixels.shape)).encode())
            digest.update(_bytes(split.pixels))
            digest.update(_bytes(split.labels))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().numpy().data
