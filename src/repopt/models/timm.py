"""The timm plug-in: `import repopt.models.timm`, and `timm.create_model("repopt_vgg_b1", ...)` knows our models.

timm has a `repvgg_b1` and a `repghostnet_050` of its own, which stay what they are; ours go by `repopt_repvgg_b1` and
`repopt_repghostnet_050` there.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from repopt.models import create_model, list_models
from repopt.models.features import FeatureMaps

try:
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
except ImportError as error:
    raise ImportError(
        f"the timm plug-in needs timm and torchvision, and {(error.name or 'one').partition('.')[0]} is not installed: "
        "pip install -e '.[timm]' from a checkout"
    ) from error
except RuntimeError as error:  # a CUDA build of torchvision beside a CPU build of torch
    raise ImportError(f"timm is installed, but its import fails ({error}): mend that first") from error

__all__: list[str] = []

_FIRST_CONVOLUTIONS: Mapping[str, str | tuple[str, ...]] = {
    "repopt_vgg": "stage0.conv",
    "repvgg": ("stage0.rbr_dense.conv", "stage0.rbr_1x1.conv"),
    "qarepvgg": ("stage0.rbr_dense.conv", "stage0.rbr_1x1"),
}


def _name_in_timm(name: str) -> str:
    return name if name.startswith("repopt_") else f"repopt_{name}"


def _first_convolutions(name: str) -> str | tuple[str, ...]:
    family, _, _ = name.rpartition("_")
    return _FIRST_CONVOLUTIONS.get(family, "conv_stem")


def _build(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
    """What timm calls; its `drop_rate` is our `dropout`."""
    options = {"dropout" if key == "drop_rate" else key: value for key, value in options.items()}
    built: nn.Module = build_model_with_cfg(
        partial(create_model, name),
        _name_in_timm(name),
        pretrained,
        feature_cfg={"feature_cls": FeatureMaps, "out_indices": None},
        **options,
    )
    return built


default_cfgs = generate_default_cfgs(
    {
        _name_in_timm(name): {
            "url": "",
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": _first_convolutions(name),
            "classifier": "classifier" if "ghostnet" in name else "linear",
            "license": "mit",
        }
        for name in list_models()
    }
)

for _name in list_models():
    _entry = partial(_build, _name)
    _entry.__name__, _entry.__module__ = _name_in_timm(_name), __name__  # type: ignore[attr-defined]
    register_model(_entry)
