"""The models, by name."""

import difflib
from typing import Any

from torch import nn

from repopt.models.vgg import VGG_SPECS, RepOptVGG, VGGSpec

__all__ = ["VGG_SPECS", "RepOptVGG", "VGGSpec", "create_model", "list_models"]


def list_models() -> list[str]:
    """The names that `create_model` takes."""
    return sorted(VGG_SPECS)


def create_model(name: str, **options: Any) -> nn.Module:
    """Builds a model by name.

    Args:
        name: one of `list_models()`.
        options: the model's own, such as `num_classes`.

    Example:
        >>> model = create_model("repopt_vgg_b1", num_classes=10)
    """
    if name not in VGG_SPECS:
        near = difflib.get_close_matches(name, list_models()) or list_models()
        raise ValueError(f"there is no model {name!r}; there is {', '.join(near)}")
    return RepOptVGG(VGG_SPECS[name], **options)
