"""The stamp in every param group of an optimizer that trains a plan: which scales and route its state belongs to.

Stepped without repopt, such a state trains the plain model. So every optimizer of the process is looked at before a
step, at one look-up per param group: one whose groups are stamped while it does not work for repopt is refused. The
guard begins when this module is loaded, with the first public name of repopt that is used.
"""

from itertools import chain
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

KEY = "repopt"  # of the stamp, in a param group and in the defaults

# The key of a saved param group under which its operators' branches are: optimizers look into every entry of the state
# itself, but not into options that they do not know.
SAVED = "repopt_branches"

WORKED_IN: WeakSet[Optimizer] = WeakSet()  # the optimizers that train a plan now


def params_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of all groups, in their order."""
    return list(chain.from_iterable(group["params"] for group in optimizer.param_groups))


def refuse_plain_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A step pre-hook: raises for an optimizer that holds a state of repopt but is not attached.

    `load_state_dict` brings the stamps of groups, never those of the defaults.
    """
    for group in optimizer.param_groups:
        if KEY in group:
            break
    else:
        return
    if KEY in optimizer.defaults or _wraps(optimizer):
        return
    raise RuntimeError(
        f"this {type(optimizer).__name__} holds a state that repopt saved but is not attached to a plan, so it would "
        "train the plain model: call repopt.attach(optimizer, plan), or make a new optimizer without that state"
    )


def _wraps(optimizer: Optimizer) -> bool:
    """Whether a step of a class's own may be that of an optimizer that trains a plan: they have parameters in common.

    A wrapper need not show whom it steps, and its groups may be copies. A rule of torch's wraps nobody.
    """
    if type(optimizer).step.__module__.startswith("torch.optim."):
        return False
    held = {id(param) for inner in WORKED_IN for param in params_of(inner)}
    return any(id(param) in held for group in optimizer.param_groups if KEY in group for param in group["params"])


register_optimizer_step_pre_hook(refuse_plain_step)
