"""Pixels out of image files: JPEG, PNG and WebP by Pillow, always RGB."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
_FORMATS = ("JPEG", "PNG", "WEBP")


class BrokenImageError(ValueError):
    """A file that cannot be decoded.

    Args:
        path: of the file.
        reason: as the decoder has it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{str(path)!r} is not a readable image ({reason}): replace it, or leave broken images out with "
            "broken='skip'"
        )


def pillow() -> ModuleType:
    """Pillow's `Image`, with all formats known so that threads need not race for them."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "image files are decoded by Pillow, which is not installed: pip install 'repopt[report]'"
        ) from error
    Image.init()
    return Image


def read_rgb(path: Path) -> "PillowImage":
    """Reads an image.

    Raises:
        BrokenImageError: it is truncated or no image.
    """
    try:
        with pillow().open(path, formats=_FORMATS) as image:
            # without the detour Pillow warns of transparent palettes
            opened: PillowImage = image.convert("RGBA") if "transparency" in image.info else image
            return opened.convert("RGB")
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # a corrupt file breaks the decoders in many ways
        raise BrokenImageError(path, str(error)) from error


def sides(path: Path) -> tuple[int, int] | None:
    """Width and height as the file's header has them; None for a header that cannot be read."""
    try:
        with pillow().open(path, formats=_FORMATS) as image:
            return image.width, image.height
    except ImportError:
        raise
    except Exception:  # its turn comes when it is decoded
        return None


def centre_crop(image: "PillowImage", size: int, share: float = 1.0) -> "PillowImage":
    """The square in the middle, `share` of the shorter side wide, at side `size`.

    It is the same as to resize the shorter side to `size / share` and to cut out the middle.
    """
    side = min(image.width, image.height) * share
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), pillow().Resampling.BILINEAR, box=(left, top, left + side, top + side))


def as_tensor(image: "PillowImage") -> Tensor:
    """(3, H, W) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def decode(paths: Sequence[Path], size: int) -> tuple[Tensor, dict[int, str]]:
    """Decodes many images in parallel.

    Pillow lets go of Python's lock while it decodes and resizes, so threads do.

    Args:
        paths: of the files.
        size: side of the middle that is kept.

    Returns:
        (N, 3, size, size) uint8 without the broken images, and why those are broken by their place among the paths.
    """
    pixels, broken = torch.empty(len(paths), 3, size, size, dtype=torch.uint8), dict[int, str]()

    def one(place: int) -> None:
        try:
            pixels[place] = as_tensor(centre_crop(read_rgb(paths[place]), size))
        except BrokenImageError as error:
            broken[place] = error.reason

    _in_threads(one, len(paths))
    if not broken:
        return pixels, broken
    return pixels[[place not in broken for place in range(len(paths))]], dict(sorted(broken.items()))


def find_broken(paths: Sequence[Path]) -> dict[int, str]:
    """Why images cannot be decoded, by their place among the paths."""
    broken = dict[int, str]()

    def one(place: int) -> None:
        try:
            read_rgb(paths[place])
        except BrokenImageError as error:
            broken[place] = error.reason

    _in_threads(one, len(paths))
    return dict(sorted(broken.items()))


def _in_threads(work: Callable[[int], None], count: int) -> None:
    pillow()  # a missing Pillow is one error here, not one a thread
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, range(count)):
            pass
