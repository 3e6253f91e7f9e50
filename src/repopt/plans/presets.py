"""Presets: the branches of well-known blocks, for every convolution of a network.

repvgg    k x k, 1 x 1 and identity; of a depthwise convolution k x k and identity              RepVGG, arXiv:2101.03697
acnet     k x k, and for each dimension the kernel that is 1 there: 1 x k and k x 1              ACNet, arXiv:1908.03930

A preset plans convolutions with a kernel of 3 or more in each dimension. Any other one that is larger than 1x1 is left
out and named, with the reason.
"""

from collections.abc import Callable, Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd

from repopt.algebra.branches import Branch, Conv, Identity
from repopt.algebra.operators import Operator, check_weight, is_linear_operator, operator_of, spell
from repopt.plans.patterns import Chosen, check_not_shared, check_plain_forward, once_each
from repopt.plans.wording import listed


def _repvgg(operator: Operator) -> list[Branch]:
    depthwise = operator.groups == operator.in_channels > 1
    return [Conv(operator.kernel_size), *(() if depthwise else (Conv(1),)), Identity()]


def _acnet(operator: Operator) -> list[Branch]:
    size = operator.kernel_size
    return [Conv(size), *(Conv((*size[:dim], 1, *size[dim + 1 :])) for dim in range(len(size)))]


PRESETS: Mapping[str, Callable[[Operator], list[Branch]]] = {"repvgg": _repvgg, "acnet": _acnet}


def preset_operators(model: nn.Module, preset: str) -> tuple[Chosen, dict[str, str]]:
    """The operators that a preset plans, with their branches, and why it leaves others out, by name."""
    if preset not in PRESETS:
        raise ValueError(
            f"there is no preset {preset!r}: give {' or '.join(map(repr, PRESETS))}, or {{pattern: [branches]}}"
        )
    operators: Chosen = {}
    left_out: dict[str, str] = {}
    for name, module in once_each(model).items():
        if not isinstance(module, _ConvNd) or all(taps == 1 for taps in module.kernel_size):
            continue
        reason = _obstacle(model, module, name)
        if reason is not None:
            left_out[name] = reason
        elif is_linear_operator(module):
            operators[name] = (module, PRESETS[preset](operator_of(module)))
    if not operators:
        others = f"; it leaves out {listed([f'{name}: {why}' for name, why in left_out.items()])}" if left_out else ""
        raise ValueError(
            f"the preset {preset!r} finds nothing to plan in this {type(model).__name__}: it wants convolutions with a "
            f"kernel of 3 or more in each dimension{others}"
        )
    return operators, left_out


def _obstacle(model: nn.Module, module: _ConvNd, name: str) -> str | None:
    """Why a convolution cannot be planned; None if it can."""
    size = module.kernel_size
    if not is_linear_operator(module):
        return f"it is a {type(module).__name__}"
    if any(taps % 2 == 0 for taps in size):
        return f"its {spell(size)} kernel has no centre"
    if any(taps < 3 for taps in size):
        return f"its {spell(size)} kernel is not 3 or more in each dimension"
    try:
        check_weight(module, name)
        check_not_shared(model, module, name)
        check_plain_forward(module, name)
    except (TypeError, ValueError) as error:
        return str(error)
    return None
