"""Pixels out of image files: JPEG, PNG and WebP by Pillow, always RGB.

This file imports Pillow and the standard library alone. Processes that do nothing but decode run it by its path (see
`processes`), and they start in a tenth of a second, without numpy and torch.
"""

import functools
import importlib
import json
import math
import mmap
import os
import signal
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp")
OTHERS = (".avif", ".bmp", ".gif", ".heic", ".jp2", ".tif", ".tiff")  # images, too, which are not read
_FORMATS = ("JPEG", "PNG", "WEBP")
_DEEP = ("I;16", "I")  # greys of 16 bits, of which the upper 8 are kept, as Pillow does with colours
_PLUGINS = ("JpegImagePlugin", "PngImagePlugin", "WebPImagePlugin")

TASK = struct.Struct("<QQQ")  # the first image's place; where the paths of all its images begin, and their length

# a JPEG's header: frames, the start of the scan, and what else a plain one has (tables, JFIF, Adobe, comments)
_FRAMES, _SCAN = (0xC0, 0xC1, 0xC2), 0xDA
_PLAIN = (0xC4, 0xDB, 0xDD, 0xE0, 0xEE, 0xFE)
_SMALL = 1 << 16  # bytes of a JPEG from which on its header is a small part of the work
_JPEG_MODES = {1: "L", 3: "RGB"}


class BrokenImageError(ValueError):
    """A file that cannot be decoded.

    Args:
        path: of the file.
        reason: as the decoder has it.
    """

    def __init__(self, path: str | Path, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{str(path)!r} is not a readable image ({reason}): replace it, or remove it; train and search leave "
            "broken images out with --broken skip"
        )


@functools.cache
def pillow() -> ModuleType:
    """Pillow's `Image`, with the formats that are read here and no others: loading all takes twice the time."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "image files are decoded by Pillow, which is not installed: pip install -e '.[report]' from a checkout"
        ) from error
    for plugin in _PLUGINS:
        importlib.import_module(f"PIL.{plugin}")
    return Image


def read_rgb(path: str | Path) -> "PillowImage":
    """Reads an image.

    Raises:
        BrokenImageError: it is truncated or no image.
    """
    try:
        image = _read_plain_jpeg(path)
        if image is not None:
            return image if image.mode == "RGB" else image.convert("RGB")
        with pillow().open(path, formats=_FORMATS) as image:
            if image.mode in _DEEP:  # `convert` would make white of all that is above 255
                high: PillowImage = pillow().frombytes("L", image.size, image.convert("I;16").tobytes(), "raw", "L;16")
                return high.convert("RGB")
            # without the detour Pillow warns of transparent palettes
            opened: PillowImage = image.convert("RGBA") if "transparency" in image.info else image
            return opened.convert("RGB")
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # a corrupt file breaks the decoders in many ways
        raise BrokenImageError(path, str(error)) from error


def _read_plain_jpeg(path: str | Path) -> "PillowImage | None":
    """A small plain JPEG, straight from Pillow's decoder; None for every other file, and for a broken one.

    `Image.open` takes as long to look at the header of a small JPEG as the decoder to decode it.
    """
    if not str(path).lower().endswith((".jpg", ".jpeg")):
        return None
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            content = os.read(file, _SMALL)
        finally:
            os.close(file)
        header = _plain_header(content) if len(content) < _SMALL else None
        if header is None:
            return None
        image: PillowImage = pillow().frombytes(*header, content, "jpeg", (header[0], ""))
        return image
    except (OSError, ValueError):  # `Image.open` knows better what is wrong with it
        return None


def _plain_header(content: bytes) -> tuple[str, tuple[int, int]] | None:
    """Mode and sides of a JPEG without anything unusual in its header."""
    header, place = None, 2
    limit = pillow().MAX_IMAGE_PIXELS or math.inf  # above it Pillow warns, or refuses
    while content.startswith(b"\xff\xd8") and place + 10 <= len(content) and content[place] == 0xFF:
        marker, length = struct.unpack_from(">BH", content, place + 1)
        if marker == _SCAN:
            return header
        if marker in _FRAMES and header is None:
            bits, height, width, layers = struct.unpack_from(">BHHB", content, place + 4)
            if bits != 8 or layers not in _JPEG_MODES or not 0 < width * height <= limit:
                return None
            header = _JPEG_MODES[layers], (width, height)
        elif marker not in _PLAIN:
            return None
        place += 2 + length
    return None


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
    if share == 1 and image.size == (size, size):
        return image
    side = min(image.width, image.height) * share
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), pillow().Resampling.BILINEAR, box=(left, top, left + side, top + side))


def decode_into(pixels: mmap.mmap | None, paths: Iterable[str | Path], size: int, first: int) -> dict[int, str]:
    """Decodes images into a buffer of (N, 3, size, size) bytes.

    Args:
        pixels: the buffer; None only looks whether the images can be decoded.
        paths: of the files.
        size: side of the middle that is kept.
        first: place of the first image in the buffer.

    Returns:
        Why images are broken, by their place.
    """
    broken, length = dict[int, str](), 3 * size * size
    for place, path in enumerate(paths, first):
        try:
            image = read_rgb(path)
        except BrokenImageError as error:
            broken[place] = error.reason
            continue
        if pixels is not None:
            middle = centre_crop(image, size)
            pixels[place * length : (place + 1) * length] = b"".join(middle.tobytes("raw", band) for band in "RGB")
    return broken


def work() -> None:
    """What a process that only decodes does: it takes tasks until there are none, and prints what was broken."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    from PIL import Image, ImageFile

    job = json.loads(sys.argv[1])
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = job["limits"]
    pixels = mmap.mmap(job["pixels"], 0) if job["size"] else None
    broken = dict[int, str]()
    while os.getppid() == job["parent"] and (task := os.read(job["tasks"], TASK.size)):
        first, offset, length = TASK.unpack(task)
        names = os.pread(job["names"], length, offset).split(b"\0")
        broken |= decode_into(pixels, map(os.fsdecode, names), job["size"], first)
    print(json.dumps(broken))
