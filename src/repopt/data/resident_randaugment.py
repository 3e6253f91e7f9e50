"""RandAugment on a batch of bytes, where the batch lives: the operations of `randaugment` without Pillow.

Images that drew the same operation are done together. Most operations are a table, one per image and channel, that
takes a byte to a byte. What is drawn stays on the CPU, so nothing is read back from the device.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from repopt.device import sent

DRAWS_PER_OPERATION = 6  # which one, its level, sign, interpolation, and a place

# the numbers of the authors' `train/randaug.py` and `train/cutout.py`, see `randaugment`
RANGE_LEVEL = 10
GREY, CUTOUT_COLOUR = (128, 128, 128), (125, 122, 113)
ROTATION, SHEAR, SHIFT = 30, 0.3, 0.45  # degrees, pixels a pixel, share of the side; to either side
LEAST_FACTOR, FACTORS = 0.1, 1.8  # of colour, contrast, brightness and sharpness: 0.1 to 1.9
BITS, THRESHOLD, ADDED, CUTOUT = 4, 256, 110, 40  # bits that are kept, values of a pixel, pixels of a side
DARK = 128  # below it, pixels are added to

_LUMA = (19595, 38470, 7471)  # of 65536, as Pillow rounds it


@dataclass(frozen=True, kw_only=True)
class DrawnRows:
    """What was drawn for some images, each (n, 1, 1) in float64; `x` and `y` are a place, as shares of the sides."""

    strength: Tensor  # level / 10
    sign: Tensor
    cubic: Tensor
    x: Tensor
    y: Tensor

    def to_either_side(self, most: float) -> Tensor:
        return self.sign * self.strength * most

    @property
    def factor(self) -> Tensor:
        return self.strength * FACTORS + LEAST_FACTOR


BatchOperation = Callable[[Tensor, DrawnRows], Tensor]


def rand_augmented_batch(pixels: Tensor, draws: Tensor, levels: int) -> Tensor:
    """The images after some operations, each at a level below `levels`.

    Args:
        pixels: (B, 3, H, W) uint8.
        draws: (B, operations, 6) in [0, 1), on the CPU.
        levels: how many.
    """
    if pixels.shape[1] != len(_LUMA):
        raise ValueError(f"RandAugment is for images of 3 channels, not {pixels.shape[1]}: give --randaugment None")
    pixels, device = pixels.clone(), pixels.device
    for drawn in draws.double().unbind(1):
        kinds = (drawn[:, 0] * len(BATCH_OPERATIONS)).long()
        strength, sign = (drawn[:, 1] * levels).floor() / RANGE_LEVEL, torch.where(drawn[:, 2] < 0.5, -1.0, 1.0)
        cubic = (drawn[:, 3] >= 0.5).double()
        values = torch.stack([strength, sign, cubic, drawn[:, 4], drawn[:, 5]])
        for kind, operate in enumerate(BATCH_OPERATIONS.values()):
            rows = (kinds == kind).nonzero()[:, 0]
            if len(rows):
                here, own = (sent(each, device) for each in (rows, values[:, rows, None, None]))
                strength, sign, cubic, x, y = own.unbind()
                chosen = DrawnRows(strength=strength, sign=sign, cubic=cubic, x=x, y=y)
                pixels.index_copy_(0, here, operate(pixels.index_select(0, here), chosen).to(torch.uint8))
    return pixels


def _by_table(make: Callable[[Tensor, Tensor, DrawnRows], Tensor]) -> BatchOperation:
    """An operation that takes bytes to bytes; `make` gets them, all 256, and the images."""

    def operate(images: Tensor, drawn: DrawnRows) -> Tensor:
        values = torch.arange(256, device=images.device).view(1, 1, -1)
        table = make(values, images, drawn).clamp(0, 255).to(torch.uint8)
        table = table.expand(len(images), images.shape[1], -1)
        return table.gather(2, images.flatten(2).long()).view_as(images)

    return operate


def _histogram(images: Tensor) -> Tensor:
    """(n, 3, 256), how often a channel has each byte."""
    places = images.flatten(2).long()
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.long, device=images.device)
    return counts.scatter_add_(2, places, torch.ones_like(places))


def _ends(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest byte of each channel."""
    present = (counts > 0).int()
    return present.argmax(2, keepdim=True), 255 - present.flip(2).argmax(2, keepdim=True)


def _auto_contrast(values: Tensor, images: Tensor, _: DrawnRows) -> Tensor:
    low, high = _ends(_histogram(images))
    scale = 255 / (high - low).clamp(min=1).double()
    return torch.where(high > low, (values * scale - low * scale).trunc(), values)


def _equalize(values: Tensor, images: Tensor, _: DrawnRows) -> Tensor:
    counts = _histogram(images)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, _ends(counts)[1])) // 255
    before = counts.cumsum(2) - counts
    return torch.where(step > 0, (step // 2 + before) // step.clamp(min=1), values)


def _posterize(values: Tensor, _: Tensor, drawn: DrawnRows) -> Tensor:
    lost = 8 - (drawn.strength * BITS).long().clamp(max=8)
    return values >> lost << lost


def _brighten_where_dark(values: Tensor, _: Tensor, drawn: DrawnRows) -> Tensor:
    return torch.where(values < DARK, values + (drawn.strength * ADDED).long(), values)


def _luma(images: Tensor) -> Tensor:
    """(n, H, W), whole numbers."""
    red, green, blue = images.long().unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue + 0x8000) >> 16


def _blend(start: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """From `start` to the images, and beyond where the factor is above 1; cut off to whole numbers as Pillow does."""
    return (start + factor.float() * (images - start.float())).clamp_(0, 255)


def _contrast(values: Tensor, images: Tensor, drawn: DrawnRows) -> Tensor:
    middle = (_luma(images).double().mean((1, 2)) + 0.5).floor()
    return _blend(middle.view(-1, 1, 1), values, drawn.factor)


def _sharpness(images: Tensor, drawn: DrawnRows) -> Tensor:
    """Between the images and what Pillow's SMOOTH makes of them: 5 in the middle and 1 around it, not at the edge."""
    pixels = images.float()
    smooth = ((F.avg_pool2d(pixels, 3, 1, 1, divisor_override=1) + 4 * pixels) / 13 + 0.5).floor()
    inside = torch.zeros(images.shape[2:], dtype=torch.bool, device=images.device)
    inside[1:-1, 1:-1] = True
    return _blend(torch.where(inside, smooth, pixels), images, drawn.factor[:, None])


def _rotate(images: Tensor, drawn: DrawnRows) -> Tensor:
    """Around the middle."""
    height, width = images.shape[2:]
    angle = drawn.to_either_side(ROTATION) * (-math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    right, down = width / 2 * (1 - cos) - height / 2 * sin, height / 2 * (1 - cos) + width / 2 * sin
    return _moved(images, drawn, cos, sin, right, -sin, cos, down)


def _moved(images: Tensor, drawn: DrawnRows, *matrix: Tensor | float) -> Tensor:
    """Each pixel from where an affine map takes it; grey comes in from outside.

    Pillow's interpolations: bilinear, and cubic convolution with a = -1, where torch's has a = -0.75.
    """
    (height, width), device = images.shape[2:], images.device
    x, y = (torch.arange(side, dtype=torch.float64, device=device) + 0.5 for side in (width, height))
    x, y = x.view(1, 1, -1), y.view(1, -1, 1)
    x, y = (a * x + b * y + c for a, b, c in (matrix[:3], matrix[3:]))
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    left, top = (x - 0.5).floor(), (y - 0.5).floor()
    right, down = ((x - 0.5 - left).float()[:, None], (y - 0.5 - top).float()[:, None])
    columns = [(left.long() + tap).clamp(0, width - 1) for tap in range(-1, 3)]
    rows = [(top.long() + tap).clamp(0, height - 1) * width for tap in range(-1, 3)]
    flat, cubic = images.flatten(2), drawn.cubic.bool()[:, None]

    def tap(place: Tensor) -> Tensor:
        return flat.gather(2, place.flatten(1)[:, None].expand(-1, images.shape[1], -1)).view_as(images).float()

    across = [_interpolated([tap(row + column) for column in columns], right, cubic) for row in rows]
    found = _interpolated(across, down, cubic).clamp_(0, 255)
    return torch.where(inside[:, None], found, float(GREY[0]))


def _interpolated(taps: Sequence[Tensor], share: Tensor, cubic: Tensor) -> Tensor:
    """Between the second and the third of four taps."""
    first, second, third, fourth = taps
    bent = share * (2 * (first - second) + third - fourth + share * (second - first + fourth - third))
    return second + share * torch.where(cubic, third - first + bent, third - second)


def _cut_out(images: Tensor, drawn: DrawnRows) -> Tensor:
    height, width = images.shape[2:]
    half = (drawn.strength * CUTOUT).clamp(min=2).long() // 2
    inside = []
    for share, side in ((drawn.y, height), (drawn.x, width)):
        middle, place = (share * side).long(), torch.arange(side, device=images.device)
        inside.append((place >= middle - half) & (place < middle + half))
    box = inside[0].transpose(1, 2) & inside[1]
    paint = torch.stack([torch.full((1, 1), value, dtype=torch.uint8, device=images.device) for value in CUTOUT_COLOUR])
    return torch.where(box[:, None], paint, images)


# in the order of `randaugment.OPERATIONS`
BATCH_OPERATIONS: Mapping[str, BatchOperation] = {
    "AutoContrast": _by_table(_auto_contrast),
    "Equalize": _by_table(_equalize),
    "Invert": lambda images, _: 255 - images,
    "Rotate": _rotate,
    "Posterize": _by_table(_posterize),
    "Solarize": _by_table(
        lambda values, _, drawn: torch.where(values < (drawn.strength * THRESHOLD).long(), values, 255 - values)
    ),
    "SolarizeAdd": _by_table(_brighten_where_dark),
    "Color": lambda images, drawn: _blend(_luma(images)[:, None], images, drawn.factor[:, None]),
    "Contrast": _by_table(_contrast),
    "Brightness": _by_table(lambda values, _, drawn: _blend(torch.zeros_like(values), values, drawn.factor)),
    "Sharpness": _sharpness,
    "ShearX": lambda images, drawn: _moved(images, drawn, 1, drawn.to_either_side(SHEAR), 0, 0, 1, 0),
    "ShearY": lambda images, drawn: _moved(images, drawn, 1, 0, 0, drawn.to_either_side(SHEAR), 1, 0),
    "TranslateX": lambda images, drawn: _moved(
        images, drawn, 1, 0, drawn.to_either_side(SHIFT) * images.shape[3], 0, 1, 0
    ),
    "TranslateY": lambda images, drawn: _moved(
        images, drawn, 1, 0, 0, 0, 1, drawn.to_either_side(SHIFT) * images.shape[2]
    ),
    "Cutout": _cut_out,
}
