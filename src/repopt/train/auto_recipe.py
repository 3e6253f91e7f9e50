"""The recipe `auto`: a folder is trained by how many images it has and how large these are.

The rule is a table in docs/recipes.md. It changes epochs, batch, weight decay, size and crops of a named recipe, and
nothing else.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

from repopt.data.datasets import kind_of
from repopt.data.survey import Survey, survey
from repopt.train.recipe import Recipe, demo, imagenet, search, small

_MANY = 100_000  # images, from which on large ones are trained as ImageNet is, and small ones with its weight decay
_FEW = 5_000  # images, below which a side of 128 pixels is enough
_SMALL_SIDE = 64  # pixels, up to which images keep their size and are shifted rather than cropped
_STEPS, _MOST_EPOCHS = 2_400, 300  # few images are seen more often: for so many steps, within so many epochs
_LEAST_BATCH, _LEAST_STEPS = 8, 10  # of an epoch


def auto_recipe(source: str, *, searching: bool = False, limit: int | None = None) -> Recipe:
    """The recipe for a source of data, named as `load_data` takes it.

    Args:
        source: the data; only a folder is looked at.
        searching: for Hyper-Search instead of a training.
        limit: train on that many images.
    """
    kind, rest = kind_of(source)
    if kind == "digits":
        return demo()
    if kind == "folder":
        return recipe_for(survey(Path(rest).expanduser(), limit), searching=searching)
    return search() if searching else small()


def recipe_for(found: Survey, *, searching: bool = False) -> Recipe:
    """The recipe for a folder of so many images of such a size."""
    many = found.images >= _MANY
    if many and found.side > _SMALL_SIDE and not searching:
        return imagenet()
    base = search() if searching else small()
    decay = imagenet().weight_decay if many else base.weight_decay
    return dataclasses.replace(base, weight_decay=decay, **_crops(found), **_length(found, base))


def _crops(found: Survey) -> dict[str, Any]:
    if found.side <= _SMALL_SIDE:
        return {"size": found.side, "crop_padding": found.side // 8}
    size = min(found.side // 32 * 32, 128 if found.images < _FEW else 224)
    return {"size": size, "crop_padding": 0, "resized_crop": (0.25, 1.0)}


def _length(found: Survey, base: Recipe) -> dict[str, Any]:
    """The batch is a power of two, so that an epoch has ten steps or more."""
    fits = 2 ** int(math.log2(max(1, found.images / _LEAST_STEPS)))
    batch = min(base.batch_size, max(_LEAST_BATCH, fits))
    wanted = math.ceil(_STEPS / max(1, found.images // batch))
    return {"batch_size": batch, "epochs": max(base.epochs, min(_MOST_EPOCHS, wanted))}
