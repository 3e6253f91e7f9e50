"""Weight decay groups, as the equality wants them.

Norms and biases, the parameters of one dimension, are not decayed. An identity branch has one dimension too, but stands
for entries of the operator's kernel, which are decayed: without decay the CSLA model and the plain one would differ.
"""

import math
import re
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from repopt.plans.patterns import check_model

# the identity of a search or CSLA block, and the gamma of a RepVGG or branch block's identity branch
_IDENTITY = re.compile(r"(^|\.)(kernels\.identity(_\d+)?|norms\.identity(_\d+)?\.weight|rbr_identity\.weight)$")


def decay_groups(
    model: nn.Module, weight_decay: float, *, identity: bool = True, scale_lr: float | Tensor | None = None
) -> list[dict[str, Any]]:
    """Param groups for any optimizer: kernels and identities with weight decay, norms and biases without.

    Args:
        model: any model.
        weight_decay: of the first group, the kernels and identities.
        identity: whether identities are decayed, as the equality wants; a search may leave them alone.
        scale_lr: the learning rate of a search model's scales, which then have the last group; like that of all others
            unless given.

    Example:
        >>> optimizer = torch.optim.SGD(decay_groups(model, 4e-5), lr=0.1, momentum=0.9)
    """
    check_model(model, "decay_groups")
    if not _is_at_least_0(weight_decay):
        raise ValueError(f"weight_decay must be a finite number of at least 0, not {weight_decay!r}")
    if not isinstance(scale_lr, Tensor | None) and not _is_at_least_0(scale_lr):
        raise ValueError(f"scale_lr must be a finite number of at least 0, not {scale_lr!r}")
    scales = set() if scale_lr is None else _scales(model)
    decayed: dict[str, Any] = {"params": [], "weight_decay": weight_decay}
    rest: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    apart: dict[str, Any] = {"params": [], "weight_decay": 0.0, "lr": scale_lr}
    for name, param in model.named_parameters():
        if isinstance(param, UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet: run one batch through the lazy module first")
        if param.requires_grad:
            decays = identity if _IDENTITY.search(name) else param.ndim > 1
            (apart if param in scales else decayed if decays else rest)["params"].append(param)
    return [group for group in (decayed, rest, apart) if group["params"]]


def _is_at_least_0(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf


def _scales(search: nn.Module) -> set[Tensor]:
    """The scales of the blocks, which also have kernels."""
    found: set[Tensor] = set()
    for module in search.modules():
        kernels, scales = (getattr(module, name, None) for name in ("kernels", "scales"))
        if isinstance(kernels, nn.ParameterDict) and isinstance(scales, nn.ParameterDict):
            found.update(scales.values())
    if not found:
        raise ValueError("scale_lr is for the scales of a search model, and this model has none")
    return found
