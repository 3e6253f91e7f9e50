"""GPTQ for convolutions: a weight's rounding error is made up for by the weights that are not rounded yet.

    minimize  || (W - W_q) X ||      X: the patches that a layer sees, W_q: whole numbers of steps
    e_i  =  (w_i - w_qi) / U_ii,     w_j  -=  U_ij e_i   for the columns j after i,      U^T U  =  (X X^T)^-1

In a RepOpt kernel the identity's weight is tens of times as large as the others of its channel. It sets their step, and
leaves them a few whole numbers: rounding to the nearest one is most of what INT8 weights cost. The method is that of
Frantar et al., *GPTQ* (ICLR 2023); here the largest weight of a step stays what it is, so that the step does.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from repopt.plans.copying import copied
from repopt.quantize.setting import Weights

_LARGEST = 127  # whole number of steps
_DAMPING = 0.01  # of the mean square of an input
_PATCHES = 100_000  # of a layer, about so many that X holds
_BLOCK = 128  # columns, whose errors reach the later ones together

_Layer = nn.Conv2d | nn.Linear


@torch.no_grad()
def rounded_by_gptq(model: nn.Module, batches: Sequence[Tensor], weights: Weights = "channel") -> nn.Module:
    """A copy whose convolutions and linear layers hold weights that INT8 rounds no further.

    Layers of other kinds, and those that the images do not reach, stay as they are.

    Args:
        model: in the form that is to be quantized; it is left as it is.
        batches: images as the model takes them.
        weights: what shares a step, an output channel or the whole tensor.
    """
    if weights == "tensor" and any(isinstance(module, _NormBase) for module in model.modules()):
        raise ValueError(
            "GPTQ rounds to the step of a whole tensor, which another one has once a norm is folded into it, as INT8 "
            "does: give weights scales by channel"
        )
    rounded = copied(model).eval()
    for layer, products in _products(rounded, batches).items():
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        rows = layer.weight.double().reshape(groups, len(layer.weight) // groups, -1)
        largest = rows.abs().amax(dim=-1 if weights == "channel" else (0, 1, 2), keepdim=True)
        steps = largest.clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
        found = [_rounded(*each) for each in zip(rows / steps, products.double(), strict=True)]
        layer.weight.copy_((torch.stack(found) * steps).reshape(layer.weight.shape))
    return rounded


def _products(model: nn.Module, batches: Sequence[Tensor]) -> dict[_Layer, Tensor]:
    """X X^T of each layer, for each group of its channels."""
    sums: dict[_Layer, Tensor] = {}

    def add(layer: _Layer, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        places = outputs.numel() // (len(outputs) * len(layer.weight))
        patches = _patches(layer, inputs[0][: math.ceil(_PATCHES / len(batches) / places)])
        sums[layer] = sums.get(layer, 0) + patches.transpose(1, 2) @ patches

    layers = [module for module in model.modules() if type(module) in (nn.Conv2d, nn.Linear)]
    hooks = [layer.register_forward_hook(add) for layer in layers if isinstance(layer.weight, nn.Parameter)]
    for batch in batches:
        model(batch.to(next(model.parameters()).device))
    for hook in hooks:
        hook.remove()
    return sums


def _patches(layer: _Layer, inputs: Tensor) -> Tensor:
    """What a layer multiplies its weights by, groups x patches x columns."""
    if isinstance(layer, nn.Linear):
        return inputs.reshape(1, -1, layer.in_features)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    columns = functional.unfold(padded, layer.kernel_size, layer.dilation, stride=layer.stride)
    images, _, places = columns.shape
    return columns.reshape(images, layer.groups, -1, places).permute(1, 0, 3, 2).flatten(1, 2)


def _rounded(weights: Tensor, products: Tensor) -> Tensor:
    """Whole numbers for weights in steps, rows x columns, the columns of the largest inputs first."""
    products.diagonal().add_(_DAMPING * products.diagonal().mean() or 1.0)
    order = products.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(products[order][:, order]))
    upper = torch.linalg.cholesky(inverse, upper=True)
    left = weights[:, order]
    kept = torch.where(left.abs() > _LARGEST - 0.5, left, torch.nan)  # the largest, which set the step
    whole = torch.empty_like(left)
    for start in range(0, left.shape[1], _BLOCK):
        end = min(start + _BLOCK, left.shape[1])
        errors = torch.empty_like(left[:, start:end])
        for column in range(start, end):
            wanted = torch.where(kept[:, column].isnan(), left[:, column], kept[:, column])
            whole[:, column] = wanted.round().clamp(-_LARGEST, _LARGEST)
            error = (left[:, column] - whole[:, column]) / upper[column, column]
            left[:, column + 1 : end] -= torch.outer(error, upper[column, column + 1 : end])
            errors[:, column - start] = error
        left[:, end:] -= errors @ upper[start:end, end:]
    return whole[:, order.argsort()]
