"""Which of a plan's weights an optimizer holds. One that is trained and not held is an error that names it."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from repopt.plans.planning import Plan, Site


def check_held(optimizer: Optimizer, plan: Plan) -> None:
    """Raises unless the optimizer holds every planned weight that requires a gradient."""
    held = _held_ids(optimizer)
    if plan.blocks and not any(id(param) in held for param in plan.model.parameters()):
        raise ValueError("the optimizer holds no parameter of the plan's model: is it that of a copy?")
    weights = {name: module.weight for name, module in plan.modules().items()}
    missing = [name for name, weight in weights.items() if weight.requires_grad and id(weight) not in held]
    if missing:
        others = f" and of {len(missing) - 1} more planned operators" if len(missing) > 1 else ""
        raise ValueError(
            f"the optimizer does not hold the weight of {missing[0]!r}{others}: give it the parameters of the plan's "
            "model, or freeze the operator"
        )


def held_weights(optimizer: Optimizer, sites: Mapping[str, Site]) -> dict[str, Tensor]:
    """The planned weights that the optimizer holds, looked up now.

    Raises:
        RuntimeError: a weight has a gradient and is trained, but the optimizer does not hold it.
    """
    held = _held_ids(optimizer)
    weights = {}
    for name, site in sites.items():
        weight = site.weight
        if id(weight) in held:
            weights[name] = weight
        elif weight.requires_grad and weight.grad is not None:
            raise RuntimeError(
                f"the weight of {name!r} is trained but is not, or no longer, a parameter of the optimizer: add it to "
                "a param group, or make and attach a new optimizer"
            )
    return weights


def _held_ids(optimizer: Optimizer) -> set[int]:
    return {id(param) for group in optimizer.param_groups for param in group["params"]}
