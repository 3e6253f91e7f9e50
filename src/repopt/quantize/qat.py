"""Quantization-aware training: the run's own recipe, short and slow, with the rounding of INT8 in the forward pass.

Fake quantizations round in the forward pass and let gradients through. Batch norms are folded into the weights before
these are rounded, and keep measuring. A converted RepVGG has no norms left: only its kernels and biases can be trained,
or else the plain model that `plain_from_repvgg` makes of it.
"""

import copy
import dataclasses

import torch
from torch import nn
from torch.fx import GraphModule

from repopt.data import DataSet
from repopt.plans.copying import copied
from repopt.plans.planning import Plan
from repopt.quantize.pt2e import convert, prepare
from repopt.quantize.setting import Int8
from repopt.train.loop import Trainer
from repopt.train.methods import Subject
from repopt.train.recipe import Recipe, with_batch_for

_SLOWER = 0.01  # of the run's own learning rate
EPOCHS = 10  # the paper's


def qat_recipe(trained_by: Recipe, *, epochs: int = EPOCHS, lr: float | None = None) -> Recipe:
    """The recipe of a fine-tuning: data, loss and optimizer of the run, a hundredth of its rate, no warm-up."""
    return dataclasses.replace(
        trained_by,
        epochs=epochs,
        lr=_SLOWER * trained_by.lr if lr is None else lr,
        warmup_epochs=0,
        mixup=0.0,
        ema=0.0,
        clip=None,
        precision="fp32",
        channels_last=False,
        compile=False,
        graph=False,
    )


def quantization_aware(
    model: nn.Module,
    data: DataSet,
    recipe: Recipe,
    setting: Int8,
    *,
    device: torch.device,
    plan: Plan | None = None,
    quiet: bool = False,
) -> GraphModule:
    """Trains with the rounding in place, and returns the INT8 program, on the CPU.

    Args:
        model: with its norms, or a deploy form; it is left as it is.
        data: to train and evaluate on.
        recipe: how, as `qat_recipe` gives it; a batch larger than the data shrinks.
        setting: of INT8; activations are measured by moving averages whatever its calibrator.
        device: where.
        plan: of the model, to multiply gradients as in its training; they are left as they are unless given.
        quiet: show no progress.
    """
    size = recipe.size or data.size
    example = torch.zeros(2, data.channels, size, size)
    prepared = prepare(copied(model).to(device), example, setting, training=True)
    subject = Subject(method="sgd", model=prepared, plan=None if plan is None else _carried(plan, prepared))
    fits = with_batch_for(recipe, len(data.train))
    Trainer(subject, data, fits, None, device=device, quiet=quiet).fit()
    return convert(prepared.cpu())


def _carried(plan: Plan, program: nn.Module) -> Plan:
    """The plan on the weights of a program, which has no modules: on a copy of the model that holds these weights.

    A program has no weights of operators that the model never applies, and neither has the plan then.
    """
    carrier, weights = copy.deepcopy(plan.model), dict(program.named_parameters())
    blocks = {name: block for name, block in plan.blocks.items() if f"{name}.weight" in weights}
    for name in blocks:
        carrier.get_submodule(name).weight = weights[f"{name}.weight"]
    return dataclasses.replace(plan, blocks=blocks).on(carrier)
