"""The deploy form: every batch norm folded into the convolution before it, every branch into one kernel.

    W  =  t * W_conv,    b  =  beta - t * mean,    t  =  gamma / sqrt(var + eps)

It computes what the model computes in eval mode. The hooks go by the three names that tools call: `switch_to_deploy`
(RepVGG's), `reparameterize` and `fuse` (timm's).
"""

from typing import Self, TypeVar

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from repopt.plans.copying import copied
from repopt.plans.patterns import check_model
from repopt.surgery.blocks import LinearAdditionBlock
from repopt.surgery.norms import foldable

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
        for module in _outermost(self):
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
    check_model(model, "deploy")
    if any(isinstance(module, LinearAdditionBlock) for module in model.modules()):
        raise ValueError("a model of blocks is merged before it is deployed: give repopt.merge(model)")
    found = [model] if isinstance(model, Foldable) else _outermost(model)
    if not found:
        raise ValueError(f"this {type(model).__name__} has no deploy form: it holds no model of repopt.models")
    if not inplace:
        return deploy(copied(model), inplace=True)
    for module in found:
        module.switch_to_deploy()
    return model


def as_deployed(model: ModuleT) -> ModuleT:
    """The deploy form of a model; a copy as it is of one that has none, as models of other code."""
    check_model(model, "deploy")
    foldable = any(isinstance(module, Foldable | LinearAdditionBlock) for module in model.modules())
    return deploy(model) if foldable else copied(model)


def _outermost(module: nn.Module) -> list[Foldable]:
    """The foldable modules below a module that are in no other foldable one."""
    found: list[Foldable] = []
    for child in module.children():
        found += [child] if isinstance(child, Foldable) else _outermost(child)
    return found


def _fold_norm_(module: nn.Module, conv: str, norm: str) -> None:
    """Folds a norm into its convolution, and leaves an identity in its place."""
    convolution, batch_norm = module.get_submodule(conv), module.get_submodule(norm)
    if not isinstance(convolution, nn.Conv2d) or isinstance(batch_norm, nn.Identity):
        return
    if not isinstance(convolution.weight, nn.Parameter):
        raise ValueError(
            f"the weight of {conv!r} is computed (it is pruned, or parametrized), and a norm cannot be folded into it: "
            "make that permanent first, for example by torch.nn.utils.prune.remove"
        )
    training, trained = convolution.training, convolution.weight.requires_grad
    fused = fuse_conv_bn_eval(convolution.eval(), foldable(batch_norm).eval())
    module.set_submodule(conv, fused.train(training).requires_grad_(trained))
    module.set_submodule(norm, nn.Identity())
