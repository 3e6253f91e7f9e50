"""UCI's handwritten digits: 1,797 real images of 8x8 pixels that ship inside the package.

By E. Alpaydin and C. Kaynak, under CC BY 4.0; DIGITS_LICENSE.txt beside this file says it in full.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from repopt.data.images import Images, Parts, balanced

FILE = Path(__file__).parent / "digits.npz"
SIZE = 32
_VAL = 360
_BRIGHTEST = 16


def read_digits(size: int = SIZE) -> Parts:
    """The digits as RGB images: 1,437 to train on and 360 to validate on, 36 of each class.

    Args:
        size: the side that they are enlarged to.
    """
    with np.load(FILE) as file:
        raw, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
    grey = F.interpolate(raw[:, None].float() * (255 / _BRIGHTEST), (size, size), mode="bilinear")
    pixels = grey.round_().clamp_(0, 255).to(torch.uint8).repeat(1, 3, 1, 1)
    images, val = Images(pixels=pixels, labels=labels), torch.zeros(len(labels), dtype=torch.bool)
    val[balanced(labels, _VAL)] = True
    return Parts(classes=tuple("0123456789"), size=size, train=images.take(~val), val=images.take(val))
