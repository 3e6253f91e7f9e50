"""Augmentation of whole batches where they live: no loop over images, yet each image has its own draw.

An image's draw is one row of uniform numbers, a column for each decision. So a row decides all that happens to an
image, on whichever rank, and switching one augmentation on leaves the draws of the others unchanged. Shapes follow from
the arguments alone, and nothing is read back from the device.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from repopt.data.images import as_bytes, resized
from repopt.data.noise import normal_noise
from repopt.data.resident_randaugment import DRAWS_PER_OPERATION, rand_augmented_batch
from repopt.plans.choices import check_choice

RandAugments = Literal["authors", "torchvision"]
Paint = Literal["noise", "mean"]

# columns of a row of draws
_FLIP, _TOP, _LEFT, _AREA, _ASPECT, _BRIGHTNESS, _CONTRAST, _SATURATION = range(8)
_ERASE, _ERASE_TOP, _ERASE_LEFT, _ERASE_AREA, _ERASE_ASPECT = range(8, 13)
DRAWS = 13

_CROP_ASPECT = (3 / 4, 4 / 3)
_ERASE_SHARE, _ERASE_SHAPE = (0.02, 1 / 3), (0.3, 1 / 0.3)  # as timm's, which the authors use
_LUMA = (0.299, 0.587, 0.114)
_HIGHEST_LEVEL = 30


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What is done to training images, in this order.

    Attributes:
        crop_padding: zeros put around an image before a window of its size is cut out at random.
        resized_crop: least and largest share of an image's area that a random box holds; the box, of aspect 3/4 to 4/3,
            becomes the image. None for no box.
        flip: mirrors every second image, left to right.
        randaugment: operations per image, and the level, at most 30, below which the strength of each is drawn.
        randaugment_by: `authors`, see `randaugment`, with levels of 10, or `torchvision`, whose levels are of 30, which
            lacks Invert, SolarizeAdd and Cutout, and which is for streamed files only.
        color_jitter: brightness, contrast and saturation are each multiplied by a number in 1 +- this.
        erasing: probability that a box is painted over.
        erasing_with: `noise`, which is standard normal after normalization (the authors' config.py: REMODE = 'pixel'),
            or the image's own `mean` colour, which normalization takes to about zero.
    """

    crop_padding: int = 0
    resized_crop: tuple[float, float] | None = None
    flip: bool = False
    randaugment: tuple[int, int] | None = None
    randaugment_by: RandAugments = "authors"
    color_jitter: float = 0.0
    erasing: float = 0.0
    erasing_with: Paint = "noise"

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise ValueError(f"crop_padding must be at least 0, not {self.crop_padding}")
        if self.resized_crop is not None and not 0 < self.resized_crop[0] <= self.resized_crop[1] <= 1:
            raise ValueError(
                f"resized_crop must be two shares of the area as (0.08, 1.0), smaller first, not {self.resized_crop}"
            )
        if self.crop_padding and self.resized_crop is not None:
            raise ValueError(
                "crop_padding and resized_crop are two ways to crop: set crop_padding=0 or resized_crop=None"
            )
        if self.randaugment is not None and not (
            self.randaugment[0] >= 1 and 1 <= self.randaugment[1] <= _HIGHEST_LEVEL
        ):
            raise ValueError(
                f"randaugment must be at least one operation and a level of 1 to {_HIGHEST_LEVEL}, as (2, 15), not "
                f"{self.randaugment}"
            )
        check_choice("randaugment_by", self.randaugment_by, get_args(RandAugments))
        check_choice("erasing_with", self.erasing_with, get_args(Paint))
        if not isinstance(self.flip, bool):
            raise TypeError(f"flip is True or False, not {self.flip!r}")
        for name, value in (("color_jitter", self.color_jitter), ("erasing", self.erasing)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {value}")


def draw(count: int, generator: torch.Generator) -> Tensor:
    """One row of draws per image, on the generator's device."""
    return torch.rand(count, DRAWS, generator=generator, device=generator.device)


def draw_operations(count: int, augmentation: Augmentation, seed: int) -> Tensor | None:
    """What RandAugment draws for each image, (count, operations, 6) on the CPU; None without it."""
    if augmentation.randaugment is None:
        return None
    shape = (count, augmentation.randaugment[0], DRAWS_PER_OPERATION)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def mixed_seed(*parts: int | str) -> int:
    """One seed from a purpose and several numbers; neighbouring numbers give unrelated seeds."""
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # a positive 64-bit integer


def apply(
    pixels: Tensor,
    draws: Tensor,
    augmentation: Augmentation,
    size: int,
    rows: Tensor | None = None,
    scaling: tuple[Tensor, Tensor] | None = None,
    operations: Tensor | None = None,
) -> Tensor:
    """Augments a batch on its device, by given draws.

    Args:
        pixels: (N, C, H, W) uint8. Without `resized_crop` images of another side than `size` are resized first.
        draws: (B, DRAWS), one row per image, as `draw` makes them.
        augmentation: what to do.
        size: side of the result.
        rows: (B,), which of the images; all of them unless given.
        scaling: what the pixels will be normalized by, as `scaling` makes it: erasing with noise needs it.
        operations: the draws of RandAugment, as `draw_operations` makes them.

    Returns:
        (B, C, size, size): uint8 where pixels are only moved, else float32 from 0 to 255.
    """
    if augmentation.resized_crop is not None:
        batch = _resized_crop(_taken(pixels, rows), draws, augmentation.resized_crop, augmentation.flip, size)
    elif augmentation.crop_padding or augmentation.flip:
        if tuple(pixels.shape[2:]) != (size, size):
            pixels, rows = resized(_taken(pixels, rows), size), None
        batch = _crop(pixels, rows, draws, augmentation.crop_padding, augmentation.flip)
    else:
        batch = resized(_taken(pixels, rows), size)
    if augmentation.randaugment is not None:
        if operations is None:
            raise ValueError("RandAugment needs draws of its own: give operations, as draw_operations makes them")
        batch = rand_augmented_batch(as_bytes(batch), operations, augmentation.randaugment[1])
    if augmentation.color_jitter:
        batch = _jittered(batch.float(), draws, augmentation.color_jitter)
    if augmentation.erasing:
        batch = batch.float()
        if augmentation.erasing_with == "mean":
            paint = batch.mean((2, 3), keepdim=True)
        elif scaling is None:
            raise ValueError("erasing with noise needs to know how pixels are normalized: give scaling")
        else:
            paint = (normal_noise(draws[:, _ERASE:], batch.shape[1:]) - scaling[1]) / scaling[0]
        batch = _erased(batch, draws, augmentation.erasing, paint)
    return batch


def scaling(
    mean: Sequence[float], std: Sequence[float], device: torch.device, highest: float = 255
) -> tuple[Tensor, Tensor]:
    """Factor and summand that normalize pixels from 0 to `highest`, made once and kept on the device.

    Args:
        mean: of each channel, on a scale from 0 to 1.
        std: deviation of each channel, likewise.
        device: where.
        highest: what a pixel may be.
    """
    centre, spread = (torch.tensor(tuple(values), dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (1 / (highest * spread)).float().to(device), (-centre / spread).float().to(device)


def scaled(pixels: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """One kernel for conversion, product and sum."""
    return torch.addcmul(summand, pixels, factor)


def crop_box(
    draws: Tensor, area: tuple[float, float], height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random boxes inside an image: top, left, height and width, each (B,) and as a share of the image's own.

    A box has the area that was drawn, uniform in its range. The aspect's logarithm is uniform among those of 3/4 to 4/3
    with which the box fits; in an image too long for any it is cut off at the image's edge.
    """
    share = area[0] + (area[1] - area[0]) * draws[:, _AREA]
    own = width / height
    least = (share * own).clamp(min=_CROP_ASPECT[0]).log()
    most = (own / share).clamp(max=_CROP_ASPECT[1]).log()
    aspect = (least + (most - least) * draws[:, _ASPECT]).exp() / own
    box_height, box_width = (share / aspect).sqrt().clamp(max=1), (share * aspect).sqrt().clamp(max=1)
    return draws[:, _TOP] * (1 - box_height), draws[:, _LEFT] * (1 - box_width), box_height, box_width


def mirrored(draws: Tensor) -> Tensor:
    """Which images are flipped."""
    return draws[:, _FLIP] < 0.5


def _taken(pixels: Tensor, rows: Tensor | None) -> Tensor:
    return pixels if rows is None else pixels.index_select(0, rows)


def _crop(pixels: Tensor, rows: Tensor | None, draws: Tensor, padding: int, flip: bool) -> Tensor:
    """Windows of the images' own size out of the padded images, mirrored or not, by one gather."""
    _, channels, height, width = pixels.shape
    device = pixels.device
    images = torch.arange(len(draws), device=device) if rows is None else rows
    y, x = torch.arange(height, device=device).expand(len(draws), -1), torch.arange(width, device=device)
    x = torch.where(mirrored(draws)[:, None], x.flip(0), x) if flip else x.expand(len(draws), -1)
    if padding:
        # a slice, not a list of columns, which would be copied; rounding may take a draw just below 1 too far
        offsets = (draws[:, _TOP : _LEFT + 1] * (2 * padding + 1)).long().clamp_(max=2 * padding) - padding
        y, x = y + offsets[:, :1], x + offsets[:, 1:]
        inside_y, inside_x = (y >= 0) & (y < height), (x >= 0) & (x < width)
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    batch = pixels[
        images[:, None, None, None],
        torch.arange(channels, device=device)[:, None, None],
        y[:, None, :, None],
        x[:, None, None, :],
    ]
    return batch.mul_(inside_y[:, None, :, None] & inside_x[:, None, None, :]) if padding else batch


def _resized_crop(pixels: Tensor, draws: Tensor, area: tuple[float, float], flip: bool, size: int) -> Tensor:
    batch, channels, image_height, image_width = pixels.shape
    top, left, height, width = crop_box(draws, area, image_height, image_width)
    across = torch.where(mirrored(draws), -width, width) if flip else width
    zero = torch.zeros_like(width)
    theta = torch.stack([across, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [batch, channels, size, size], align_corners=False)
    return F.grid_sample(pixels.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def _jittered(batch: Tensor, draws: Tensor, strength: float) -> Tensor:
    """Brightness, contrast and saturation, always in this order."""
    brightness, contrast, saturation = (
        (1 + strength * (2 * draws[:, column] - 1)).view(-1, 1, 1, 1)
        for column in (_BRIGHTNESS, _CONTRAST, _SATURATION)
    )
    batch = (batch * brightness).clamp_(0, 255)
    middle = _grey(batch).mean((2, 3), keepdim=True)
    batch = torch.lerp(middle, batch, contrast).clamp_(0, 255)
    return torch.lerp(_grey(batch), batch, saturation).clamp_(0, 255)


def _grey(batch: Tensor) -> Tensor:
    if batch.shape[1] != len(_LUMA):
        return batch.mean(1, keepdim=True)
    red, green, blue = batch.unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue)[:, None]


def _erased(batch: Tensor, draws: Tensor, probability: float, paint: Tensor) -> Tensor:
    height, width = batch.shape[2:]
    share = _ERASE_SHARE[0] + (_ERASE_SHARE[1] - _ERASE_SHARE[0]) * draws[:, _ERASE_AREA]
    shape = (math.log(_ERASE_SHAPE[0]) * (1 - 2 * draws[:, _ERASE_ASPECT])).exp()  # 0.3 to 1/0.3
    inside = []
    for side, length, column in ((height, share * shape, _ERASE_TOP), (width, share / shape, _ERASE_LEFT)):
        extent = (length.sqrt() * side).round().clamp(1, side)
        first = (draws[:, column] * (side - extent + 1)).floor()
        place = torch.arange(side, device=batch.device)
        inside.append((place >= first[:, None]) & (place < (first + extent)[:, None]))
    chosen = (draws[:, _ERASE] < probability).view(-1, 1, 1, 1)
    box = inside[0][:, None, :, None] & inside[1][:, None, None, :] & chosen
    return torch.where(box, paint, batch)
