"""What is known of update rules: the exactness table.

    dW'  =  ( sum_b embed_b(|s_b|^(1+k)) ) * U(g)                                         Rule of Iteration (Eq. 3)

holds for a rule U that works entry by entry and is odd and homogeneous of degree k in the gradients seen so far. SGD
has k = 1 whatever its momentum, dampening, decay or sign: there, multiplying the gradient is enough.
"""

from dataclasses import dataclass

import torch
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An update rule.

    Attributes:
        degree: k, or None where the update is not homogeneous in the gradient.
    """

    degree: int | None


RULES: dict[type[Optimizer], Rule] = {
    torch.optim.SGD: Rule(degree=1),
}


def rule_of(optimizer: Optimizer) -> Rule | None:
    """The rule of an optimizer; None for a class that the table does not know, a subclass of a known one included."""
    return RULES.get(type(optimizer))
