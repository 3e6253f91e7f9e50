"""The deploy form: every batch norm folded into the convolution before it, every branch into one kernel.

    W  =  t * W_conv,    b  =  beta - t * mean,    t  =  gamma / sqrt(var + eps)

It computes what the model computes in eval mode. The hooks go by the three names that tools call: `switch_to_deploy`
(RepVGG's), `reparameterize` and `fuse` (timm's).
"""

import copy
from typing import Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Foldable(nn.Module):
    """A module that can turn into its deploy form, in place.

    Attributes:
        norm_pairs: names of a convolution and of the norm that follows it.
    """

    norm_pairs: tuple[tuple[str, str], ...] = ()

    def switch_to_deploy(self) -> None:
        """Folds this module and what it holds; a second time does nothing."""
        for conv, norm in self.norm_pairs:
            _fold_norm_(self, conv, norm)
        for child in self.children():
            for module in child.modules():
                if isinstance(module, Foldable):
                    module.switch_to_deploy()

    def reparameterize(self) -> None:
        self.switch_to_deploy()

    def fuse(self) -> Self:
        self.switch_to_deploy()
        return self


def deploy(model: ModuleT, *, inplace: bool = False) -> ModuleT:
    """The deploy form of a model of this package, or of one that holds such models.

    Args:
        model: the model; what a user built around it is left as it is.
        inplace: change the model instead of a copy.
    """
    deployed = model if inplace else copy.deepcopy(model)
    found = [module for module in deployed.modules() if isinstance(module, Foldable)]
    if not found:
        raise ValueError(f"this {type(model).__name__} has no deploy form: it holds no model of repopt.models")
    for module in found:
        module.switch_to_deploy()
    return deployed


def norm_affine(norm: nn.Module | None, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """What a batch norm does in eval mode, as a scale and a shift a channel; 1 and 0 where there is none."""
    if not isinstance(norm, nn.BatchNorm2d):
        return torch.ones_like(like), torch.zeros_like(like)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return scale, norm.bias - scale * norm.running_mean


def _fold_norm_(module: nn.Module, conv: str, norm: str) -> None:
    """Folds a norm into its convolution, and leaves an identity in its place."""
    convolution, batch_norm = module.get_submodule(conv), module.get_submodule(norm)
    if not isinstance(convolution, nn.Conv2d) or not isinstance(batch_norm, nn.BatchNorm2d):
        return
    training = convolution.training
    fused = fuse_conv_bn_eval(convolution.eval(), batch_norm.eval())
    module.set_submodule(conv, fused.train(training))
    module.set_submodule(norm, nn.Identity())
