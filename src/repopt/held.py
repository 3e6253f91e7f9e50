"""Which of a plan's weights an optimizer holds. One that is trained and not held is an error that names it."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from repopt.operators import LinearOperator


def check_held(optimizer: Optimizer, modules: Mapping[str, LinearOperator]) -> None:
    """Raises unless the optimizer holds every planned weight that requires a gradient."""
    held = held_ids(optimizer)
    missing = [name for name, each in modules.items() if each.weight.requires_grad and id(each.weight) not in held]
    if missing:
        others = f" and of {len(missing) - 1} more planned operators" if len(missing) > 1 else ""
        raise ValueError(
            f"the optimizer does not hold the weight of {missing[0]!r}{others}: give it the parameters of the plan's "
            "model, or freeze the operator"
        )


def held_weights(optimizer: Optimizer, modules: Mapping[str, LinearOperator]) -> dict[str, Tensor]:
    """The planned weights that the optimizer holds, looked up now.

    Raises:
        RuntimeError: a weight has a gradient and is trained, but the optimizer does not hold it.
    """
    held = held_ids(optimizer)
    weights = {}
    for name, module in modules.items():
        weight = module.weight
        if id(weight) in held:
            weights[name] = weight
        elif weight.requires_grad and weight.grad is not None:
            raise RuntimeError(
                f"the weight of {name!r} is trained but is not, or no longer, a parameter of the optimizer: add it to "
                "a param group, or make and attach a new optimizer"
            )
    return weights


def held_ids(optimizer: Optimizer) -> set[int]:
    return {id(param) for group in optimizer.param_groups for param in group["params"]}
