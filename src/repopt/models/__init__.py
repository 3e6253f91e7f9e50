"""The models, by name."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from repopt.models.checkpoints import load_checkpoint
from repopt.models.features import FeatureMaps
from repopt.models.folding import as_deployed, deploy
from repopt.models.ghost import GHOST_WIDTHS, RepGhostNet, RepOptGhostNet
from repopt.models.references import check_trust, is_reference, make_referenced
from repopt.models.repvgg import QARepVGG, RepVGG, plain_from_repvgg
from repopt.models.saved import give_biases_, read_saved
from repopt.models.staged import StagedNet
from repopt.models.vgg import VGG, VGG_SPECS, RepOptVGG, VGGSpec
from repopt.plans.wording import joined

__all__ = [
    "GHOST_WIDTHS",
    "VGG_SPECS",
    "FeatureMaps",
    "QARepVGG",
    "RepGhostNet",
    "RepOptGhostNet",
    "RepOptVGG",
    "RepVGG",
    "VGGSpec",
    "as_deployed",
    "create_model",
    "deploy",
    "list_models",
    "load_checkpoint",
    "plain_from_repvgg",
]

_VGGS: Mapping[str, type[VGG]] = {"repopt_vgg": RepOptVGG, "repvgg": RepVGG, "qarepvgg": QARepVGG}
_GHOSTS: Mapping[str, type[RepGhostNet]] = {"repopt_ghostnet": RepOptGhostNet, "repghostnet": RepGhostNet}


def _make_vgg(
    net: type[VGG],
    spec: VGGSpec,
    *,
    depths: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    stem: int | None = None,
    **options: Any,
) -> VGG:
    """A VGG of a spec, or of other depths and widths."""
    free = VGGSpec(
        depths=spec.depths if depths is None else _sizes(depths),
        widths=spec.widths if widths is None else _sizes(widths),
        stem=spec.stem if stem is None else stem,
    )
    return net(free, **options)


def _sizes(given: Sequence[int]) -> tuple[int, ...]:
    return tuple(given) if isinstance(given, Sequence) else (given,)


def _make_ghost(net: type[RepGhostNet], named: float, *, width: float | None = None, **options: Any) -> RepGhostNet:
    return net(named if width is None else width, **options)


_MAKERS: Mapping[str, partial[Any]] = {
    **{
        f"{family}_{size}": partial(_make_vgg, net, spec)
        for family, net in _VGGS.items()
        for size, spec in VGG_SPECS.items()
    },
    **{
        f"{family}_{size}": partial(_make_ghost, net, width)
        for family, net in _GHOSTS.items()
        for size, width in GHOST_WIDTHS.items()
    },
}


def _options(maker: partial[Any]) -> list[str]:
    """The options of a model's maker and of the model itself."""
    signatures = (inspect.signature(maker.func), inspect.signature(maker.args[0].__init__))
    return [
        name
        for each in signatures
        for name, parameter in each.parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY
    ]


def list_models() -> list[str]:
    """The names that `create_model` takes."""
    return sorted(_MAKERS)


def create_model(
    name: str | Path,
    *,
    features_only: bool = False,
    out_indices: Sequence[int] | int | None = None,
    trust: bool = False,
    **options: Any,
) -> nn.Module:
    """Builds a model by name, or loads one from the folder of a finished run or of `repopt export`.

    Like any new module it is in train mode.

    Args:
        name: one of `list_models()`, or a reference: `timm:NAME`, `torchvision:NAME` or `package.module:factory`; or a
            folder with config.json and model.safetensors. A `Path` is always a folder.
        features_only: the model as a backbone that returns its maps (`feature_info` has their channels and reductions).
        out_indices: which maps, all unless given.
        trust: import the `package.module:factory` that a folder names. It can execute code: trust the one who wrote it.
        options: the model's own, such as `num_classes`, and for a VGG other `depths`, `widths` and `stem`, for a
            GhostNet another `width` than the name's. On top of a folder's own, where its weights still fit.

    Example:
        >>> model = create_model("repopt_vgg_b1", num_classes=10)
    """
    if isinstance(name, str) and (name in _MAKERS or not name or not Path(name).is_dir()):
        return _named(name, features_only, out_indices, options)
    if not isinstance(name, str | Path):
        raise ValueError(f"there is no model {name!r}: give a name of list_models(), or a folder")
    saved = read_saved(Path(name))
    check_trust(saved.model, name, trust=trust)
    model = _named(saved.model, features_only, out_indices, {**saved.options, **options})
    give_biases_(model, saved.biases)
    load_checkpoint(model, saved.weights)
    return model


def check_name(name: str) -> None:
    """Raises unless it is a name of `list_models()` or a reference, which may still name nothing."""
    if name in _MAKERS or is_reference(name):
        return
    near = difflib.get_close_matches(name.lower(), list_models())
    hint = f"did you mean {joined(near, 'or')}? Others" if near else "`repopt list` has ours; others"
    folder = ", nor a folder of that name" if "/" in name else ""
    raise ValueError(
        f"there is no model {name!r}{folder}: {hint} are timm:NAME, torchvision:NAME or package.module:factory"
    )


def _named(
    name: str, features_only: bool, out_indices: Sequence[int] | int | None, options: dict[str, Any]
) -> nn.Module:
    if is_reference(name):
        if features_only or out_indices is not None:
            raise ValueError(f"features_only is for the models of list_models(), not for {name}: ask its own library")
        return make_referenced(name, options)
    check_name(name)
    if out_indices is not None and not features_only:
        raise ValueError("out_indices says which maps a backbone returns: give features_only=True with it")
    maker = _MAKERS[name]
    known = _options(maker)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}")
    if features_only:
        options = {**options, "num_classes": 0}
    net: StagedNet = maker(**options)
    return FeatureMaps(net, out_indices) if features_only else net
