"""The stamp in every param group of an optimizer that trains a plan: which scales and route its state belongs to.

Stepped without repopt, such a state trains the plain model. So every optimizer of the process is looked at before a
step, which takes two look-ups: one whose groups are stamped while it does not work for repopt is refused.
"""

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

KEY = "repopt"  # of the stamp, in a param group and in the defaults


def refuse_plain_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A step pre-hook: raises for an optimizer that holds a state of repopt but is not attached.

    `load_state_dict` brings the stamps of groups, never those of the defaults.
    """
    groups = optimizer.param_groups
    if not groups or KEY not in groups[0] or KEY in optimizer.defaults:
        return
    wrapped = (each for each in vars(optimizer).values() if isinstance(each, Optimizer))
    if any(KEY in inner.defaults for inner in wrapped):  # it shares the groups of the one that steps
        return
    raise RuntimeError(
        f"this {type(optimizer).__name__} holds a state that repopt saved but is not attached to a plan, so it would "
        "train the plain model: call repopt.attach(optimizer, plan), or make a new optimizer without that state"
    )


register_optimizer_step_pre_hook(refuse_plain_step)
