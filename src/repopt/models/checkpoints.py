"""Reads checkpoints of other code: the authors', the public RepVGG's and RepGhost's, timm's.

A checkpoint is a file (safetensors, or a PyTorch file that holds tensors alone) or a state dict, perhaps inside `model`
or `state_dict` and with the prefixes of wrappers. Keys are renamed, nothing else is changed, and what does not fit is
an error that names it.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from repopt.files import read_sealed, read_torch
from repopt.plans.patterns import check_model, clean, clean_modules

_COUNT = "num_batches_tracked"
_INSIDE, _DEEPEST = ("state_dict", "model"), 8

# key of another layout -> ours, each applied where it matches
_RENAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        # timm's RepVGG
        (r"^stem\.", "stage0."),
        (r"^head\.fc\.", "linear."),
        (r"\.conv_kxk\.", ".rbr_dense."),
        (r"\.conv_1x1\.(conv|bn)\.", r".rbr_1x1.\1."),
        (r"^(stage\d+(?:\.\d+)?)\.identity\.", r"\1.rbr_identity."),
        (r"\.reparam_conv\.", ".rbr_reparam."),
        # the authors' RepVGG and squeeze and excitation
        (r"\.conv_3x3\.", ".rbr_dense.conv."),
        (r"\.bn_3x3\.", ".rbr_dense.bn."),
        (r"\.conv_1x1\.weight$", ".rbr_1x1.conv.weight"),
        (r"\.bn_1x1\.", ".rbr_1x1.bn."),
        (r"\.bn_identity\.", ".rbr_identity."),
        (r"\.post_se\.down\.", ".se.conv_reduce."),
        (r"\.post_se\.up\.", ".se.conv_expand."),
        # the authors' GhostNet
        (r"\.final_bn\.", ".cheap_operation.1."),
        (r"\.fusion_bn\.(?!0\.)", ".fusion_bn.0."),
    )
)
_TIMM_STAGE = re.compile(r"^stages\.(\d+)\.")


def load_checkpoint(model: nn.Module, source: str | Path | Mapping[str, Any]) -> None:
    """Loads a checkpoint into a model of this package, wrapped or not, whatever layout its keys have.

    Args:
        model: a model of the checkpoint's architecture: a RepVGG for RepVGG's weights, with `deploy=True` for converted
            ones; `plain_from_repvgg` takes it to a plain model. A backbone takes what it has of a whole model.
        source: a file, or a state dict. Files are read safely: nothing in them is executed.

    Raises:
        ValueError: the file cannot be read, or the checkpoint does not fit; the message names the first keys.
    """
    check_model(model, "load_checkpoint")
    inner = clean_modules(model)[""]
    left_out = tuple(f"{name}." for name in getattr(inner, "left_out", ()))  # of a backbone
    own, tensors = inner.state_dict(), _tensors(source)
    for change in (partial(_unwrapped, own=own), _layout):  # what has the model's own keys is taken as it is
        tensors = tensors if _counted_in(tensors) == _counted_in(own) else change(tensors)
    state = {key: value for key, value in tensors.items() if not key.startswith(left_out)}
    for key in {key for key in (*own, *state) if key.endswith(_COUNT)} - (own.keys() & state.keys()):
        state.pop(key, None)  # frozen norms count no batches
        if key in own:
            state[key] = own[key]  # older checkpoints have no count
    missing = [key for key in own if key not in state]
    unexpected = [key for key in state if key not in own]
    if missing or unexpected:
        words = [_counted("it lacks", missing), _counted("it holds", unexpected)]
        raise ValueError(
            f"the checkpoint does not fit this {type(inner).__name__}: {' and '.join(filter(None, words))}"
            f"{_hint(missing, unexpected)}"
        )
    for key, tensor in own.items():
        if state[key].shape != tensor.shape:
            raise ValueError(
                f"the checkpoint does not fit this {type(inner).__name__}: {key!r} has shape "
                f"{tuple(state[key].shape)} in it and {tuple(tensor.shape)} in the model (for another number of "
                "classes, load first and then call reset_classifier)"
            )
        if state[key].is_complex() and not tensor.is_complex():
            raise ValueError(f"the checkpoint holds complex numbers at {key!r}, where the model has real ones")
    inner.load_state_dict(state)


def _hint(missing: list[str], unexpected: list[str]) -> str:
    if any("rbr_reparam" in key for key in (*missing, *unexpected)):
        return " (converted weights go into a model built with deploy=True)"
    if any("rbr_" in key for key in unexpected):
        return " (RepVGG's weights go into a repvgg model, and plain_from_repvgg takes that to a plain one)"
    if unexpected and not missing and all(key.endswith(".bias") for key in unexpected):
        return " (the norms of real branches leave biases: create_model takes the run's folder, which says where)"
    return ""


def _counted(verb: str, keys: list[str]) -> str:
    if not keys:
        return ""
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return f"{verb} {keys[0]!r}{more}" + (", which the model has not" if verb == "it holds" else "")


def _layout(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict with our keys."""
    renamed = {}
    for key, tensor in state.items():
        name = _TIMM_STAGE.sub(lambda match: f"stage{int(match[1]) + 1}.", key)
        for pattern, ours in _RENAMES:
            name = pattern.sub(ours, name)
        if name in renamed:
            raise ValueError(f"the checkpoint holds {name!r} twice, under two layouts' names")
        renamed[name] = tensor
    return renamed


def _tensors(source: str | Path | Mapping[str, Any]) -> Mapping[str, Tensor]:
    if not isinstance(source, str | Path | Mapping):
        raise TypeError(f"load_checkpoint takes a file or a state dict, not a {type(source).__name__}")
    inside = source if isinstance(source, Mapping) else _read(Path(source))
    for _ in range(_DEEPEST):  # a file may hold a dictionary that holds itself
        inside = next((inside[key] for key in _INSIDE if isinstance(inside.get(key), Mapping)), inside)
    if not inside or not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in inside.items()):
        raise ValueError(
            "the checkpoint holds no state dict: give one of tensors alone, or a dictionary with one under 'model' or "
            "'state_dict'"
        )
    return inside


def _unwrapped(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without Lightning's prefix and those of wrappers; a model's own key may hold the name of one."""
    prefix = "model." if all(key.startswith("model.") for key in state) else ""
    names = [clean(key.removeprefix(prefix)) for key in state]
    if len(set(names)) < len(names):
        raise ValueError("the checkpoint holds a tensor twice, with and without a wrapper's prefix")
    own_keys = {clean(key): key for key in own}
    return {own_keys.get(name, name): tensor for name, tensor in zip(names, state.values(), strict=True)}


def _counted_in(state: Mapping[str, Tensor]) -> set[str]:
    """The keys that a checkpoint must hold: older ones have no count of batches."""
    return {key for key in state if not key.endswith(_COUNT)}


def _read(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder: give the file in it, as model.safetensors of a run")
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    if path.suffix == ".safetensors":
        return read_sealed(path, unsealed_too=True)[0]
    loaded = read_torch(path)
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{str(path)!r} holds a {type(loaded).__name__}, not a checkpoint")
    return loaded
