"""RandAugment as the paper's authors have it, on Pillow images; `resident_randaugment` has it for batches.

Two operations of 16 are drawn for an image, each with a level of its own. The ranges below belong to level 10, and an
operation at level l goes l/10 of the way. The authors draw levels of 0 to 14, so some go beyond the range. The numbers
are those of `train/randaug.py` and `train/cutout.py` in github.com/DingXiaoH/RepVGG, which the preset `raug15` of
`data/build.py` in github.com/DingXiaoH/RepOptimizers uses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import ImageEnhance, ImageOps
from PIL.Image import Image as PillowImage
from PIL.Image import Resampling, Transform

from repopt.data.resident_randaugment import (
    ADDED,
    BITS,
    CUTOUT,
    CUTOUT_COLOUR,
    DARK,
    DRAWS_PER_OPERATION,
    FACTORS,
    GREY,
    LEAST_FACTOR,
    RANGE_LEVEL,
    ROTATION,
    SHEAR,
    SHIFT,
    THRESHOLD,
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is drawn for an operation; `x` and `y` are a place, as shares of the image's sides."""

    strength: float  # level / 10
    sign: int
    resample: Resampling
    x: float
    y: float

    def to_either_side(self, most: float) -> float:
        return self.sign * self.strength * most


Operation = Callable[[PillowImage, Drawn], PillowImage]


def rand_augmented(image: PillowImage, operations: int, levels: int, generator: torch.Generator) -> PillowImage:
    """The image after some operations, each at a level below `levels`."""
    kinds = list(OPERATIONS.values())
    for kind, level, *others in torch.rand(operations, DRAWS_PER_OPERATION, generator=generator).tolist():
        image = kinds[int(kind * len(kinds))](image, drawn(int(level * levels), others))
    return image


def drawn(level: int, others: Sequence[float]) -> Drawn:
    """A level, and what four numbers in [0, 1) decide: sign, interpolation, and a place."""
    sign, resample, x, y = others
    return Drawn(
        strength=level / RANGE_LEVEL,
        sign=-1 if sign < 0.5 else 1,
        resample=Resampling.BILINEAR if resample < 0.5 else Resampling.BICUBIC,
        x=x,
        y=y,
    )


def _moved(image: PillowImage, drawn: Drawn, *matrix: float) -> PillowImage:
    return image.transform(image.size, Transform.AFFINE, matrix, drawn.resample, fillcolor=GREY)


def _enhanced(kind: Callable[[PillowImage], ImageEnhance._Enhance]) -> Operation:
    return lambda image, drawn: kind(image).enhance(drawn.strength * FACTORS + LEAST_FACTOR)


def _posterized(image: PillowImage, drawn: Drawn) -> PillowImage:
    lost = 8 - min(8, int(drawn.strength * BITS))  # all 8 at the lowest levels, which is black
    return image.point([value >> lost << lost for value in range(256)] * 3)


def _brightened_where_dark(image: PillowImage, drawn: Drawn) -> PillowImage:
    added = int(drawn.strength * ADDED)
    return image.point([min(255, value + added) if value < DARK else value for value in range(256)] * 3)


def _cut_out(image: PillowImage, drawn: Drawn) -> PillowImage:
    half = int(max(2, drawn.strength * CUTOUT)) // 2
    x, y = int(drawn.x * image.width), int(drawn.y * image.height)
    image = image.copy()
    box = (max(0, x - half), max(0, y - half), min(image.width, x + half), min(image.height, y + half))
    image.paste(CUTOUT_COLOUR, box)
    return image


OPERATIONS: Mapping[str, Operation] = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Rotate": lambda image, drawn: image.rotate(drawn.to_either_side(ROTATION), drawn.resample, fillcolor=GREY),
    "Posterize": _posterized,
    "Solarize": lambda image, drawn: ImageOps.solarize(image, int(drawn.strength * THRESHOLD)),
    "SolarizeAdd": _brightened_where_dark,
    "Color": _enhanced(ImageEnhance.Color),
    "Contrast": _enhanced(ImageEnhance.Contrast),
    "Brightness": _enhanced(ImageEnhance.Brightness),
    "Sharpness": _enhanced(ImageEnhance.Sharpness),
    "ShearX": lambda image, drawn: _moved(image, drawn, 1, drawn.to_either_side(SHEAR), 0, 0, 1, 0),
    "ShearY": lambda image, drawn: _moved(image, drawn, 1, 0, 0, drawn.to_either_side(SHEAR), 1, 0),
    "TranslateX": lambda image, drawn: _moved(image, drawn, 1, 0, drawn.to_either_side(SHIFT) * image.width, 0, 1, 0),
    "TranslateY": lambda image, drawn: _moved(image, drawn, 1, 0, 0, 0, 1, drawn.to_either_side(SHIFT) * image.height),
    "Cutout": _cut_out,
}
