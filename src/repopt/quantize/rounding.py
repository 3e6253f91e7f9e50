"""GPTQ for convolutions: the weights that are not rounded yet make up for the errors of those that are.

    minimize  || (W - W_q) X ||      X: patches that the float network shows a layer, W_q: whole numbers of steps
    e_i  =  (w_i - w_qi) / U_ii,     w_j  -=  U_ij e_i   for the columns j after i,      U^T U  =  (X X^T)^-1

In a RepOpt kernel the identity's weight is mostly many times as large as the others of its channel. It sets their
step, and leaves them a few whole numbers: rounded to the nearest, they are most of what INT8 weights cost. The method
is that of Frantar et al., *GPTQ* (ICLR 2023); here weights at the end of the range are not corrected, so that
the step stays what it is.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from repopt.plans.copying import copied
from repopt.quantize.setting import Weights

_LARGEST = 127  # steps from 0 to the largest weight
_DAMPING = 0.01  # of the mean square of an input
_PATCHES = 100_000  # that X holds at the most
_BLOCK = 128  # columns, whose errors reach the later ones together

_Layer = nn.Conv2d | nn.Linear
_FORWARD = {nn.Conv2d: ("forward", "_conv_forward"), nn.Linear: ("forward",)}  # what a subclass may not change


@torch.no_grad()
def rounded_by_gptq(model: nn.Module, batches: Sequence[Tensor], weights: Weights = "channel") -> nn.Module:
    """A copy whose convolutions and linear layers hold weights that INT8 rounds no further.

    Layers of other kinds, and those that the images do not reach, stay as they are.

    Args:
        model: in the form that is to be quantized; it is left as it is, and everything is computed on its device.
        batches: images as the model takes them.
        weights: what shares a step, an output channel or the whole tensor.

    Raises:
        ValueError: there is nothing to round, or the step would not last.
    """
    check_steps(model, weights)
    rounded, sums = copied(model, training=False), _products(model, batches)
    if not sums:
        raise ValueError(
            f"GPTQ rounds the weights of nn.Conv2d and nn.Linear, and this {type(model).__name__} applies none: "
            "leave --rounding gptq out"
        )
    for name in list(sums):
        layer, products = rounded.get_submodule(name), sums.pop(name)
        if not products.isfinite().all():
            raise ValueError(f"the inputs of {name!r} are too large for GPTQ, or not finite: leave --rounding gptq out")
        assert isinstance(layer, _Layer)
        rows = layer.weight.double().reshape(len(products), len(layer.weight) // len(products), -1)
        largest = rows.abs().amax(dim=-1 if weights == "channel" else (0, 1, 2), keepdim=True)
        steps = largest.clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
        found = [_rounded(*each) for each in zip(rows / steps, products, strict=True)]
        layer.weight.copy_((torch.stack(found) * steps).reshape(layer.weight.shape))
    return rounded


def check_steps(model: nn.Module, weights: Weights) -> None:
    """Raises where a norm is folded into a convolution later: that changes the step of a whole weight."""
    if weights == "tensor" and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise ValueError(
            "INT8 folds this model's batch norms into its weights, which changes the step of a whole weight, so GPTQ "
            "cannot round to it: give weights scales by channel"
        )


def _products(model: nn.Module, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """X X^T of each weight by the name of the first layer that has it, for each group of the layer's channels."""
    seen = copied(model, training=False)  # of which the images may change more than the weights
    device = next(model.parameters()).device
    draw, most = torch.Generator().manual_seed(0), math.ceil(_PATCHES / len(batches))
    names, sums = dict[Tensor, str](), dict[str, Tensor]()

    def add(layer: _Layer, inputs: tuple[Tensor, ...], named: dict[str, Tensor], _: Tensor) -> None:
        patches = _patches(layer, inputs[0] if inputs else named["input"], most, draw).float()
        name = names[layer.weight]
        sums[name] = sums.get(name, 0.0) + (patches.transpose(1, 2) @ patches).double()

    for name, module in seen.named_modules():
        if _is_plain(module):
            names.setdefault(module.weight, name)
            module.register_forward_hook(add, with_kwargs=True)
    for batch in batches:
        seen(batch.to(device, copy=True))
    return sums


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer multiplies its inputs by its own weight, as torch's does."""
    as_torchs = any(
        isinstance(module, kind) and all(getattr(type(module), name) is getattr(kind, name) for name in names)
        for kind, names in _FORWARD.items()
    )
    return as_torchs and isinstance(module.weight, nn.Parameter) and module.weight.dtype == torch.float32


def _patches(layer: _Layer, inputs: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """What a layer multiplies its weights by, groups x patches x columns; so many, drawn at random, or all."""
    if isinstance(layer, nn.Linear):
        rows = inputs.reshape(-1, layer.in_features)
        return rows[_drawn(len(rows), most, draw).to(rows.device)][None]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    around = layer._reversed_padding_repeated_twice
    padded = functional.pad(inputs.reshape(-1, *inputs.shape[-3:]), around, mode=mode)
    (high, wide), (down, across), (below, beside) = layer.kernel_size, layer.stride, layer.dilation
    rows_out = (padded.shape[-2] - below * (high - 1) - 1) // down + 1
    columns_out = (padded.shape[-1] - beside * (wide - 1) - 1) // across + 1
    place = _drawn(len(padded) * rows_out * columns_out, most, draw).to(padded.device)
    image, row, column = place // (rows_out * columns_out), place // columns_out % rows_out, place % columns_out
    taps = [
        padded[image, :, row * down + i * below, column * across + j * beside] for i in range(high) for j in range(wide)
    ]
    return torch.stack(taps, dim=-1).reshape(len(place), layer.groups, -1).transpose(0, 1)


def _drawn(count: int, most: int, draw: torch.Generator) -> Tensor:
    """On the CPU, so that every device draws the same."""
    if count <= most:
        return torch.arange(count, device="cpu")
    return torch.randint(count, (most,), generator=draw, device="cpu")


def _rounded(weights: Tensor, products: Tensor) -> Tensor:
    """Whole numbers for weights in steps, rows x columns, the columns of the largest inputs first."""
    products.diagonal().add_(_DAMPING * products.diagonal().mean() or 1.0)
    order = products.diagonal().argsort(descending=True)
    # products = V V^T with V upper triangular, so U is the inverse of V
    root = torch.linalg.cholesky(products[order][:, order].flip(0, 1)).flip(0, 1)
    upper = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=root.dtype, device=root.device), upper=True)
    left = weights[:, order]
    kept = torch.where(left.abs() > _LARGEST - 0.5, left, torch.nan)  # at the end of the range
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
