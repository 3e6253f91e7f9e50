"""What is known of update rules: the exactness table.

    dW'  =  ( sum_b embed_b(|s_b|^(1+k)) ) * U(g)                                         Rule of Iteration (Eq. 3)

holds for a rule U that works entry by entry and is odd and homogeneous of degree k in the gradients seen so far. With
k = 1 multiplying the gradient is enough. Every other rule steps the branches' own tensors instead. From this table come
the route that `attach` takes, its errors, the tests, and docs/exactness.md. It is keyed by the names in torch.optim, so
it works with a torch that lacks one of them (Muon came with 2.9).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.optim import Optimizer

WeightsLook = Literal["never", "with coupled L2", "always"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An update rule.

    Attributes:
        route: the exact one; None where there is none.
        why: the reason, as the end of a sentence that begins with the optimizer's name.
        degree: k; for a rule with an eps, what k would be without it; None where the update is not homogeneous.
        looks_at_weights: whether the update depends on the weights beyond a plain decay, so that it matters which
            kernels the block starts from.
        matrices_only: whether the rule takes tensors of two dimensions alone.
        closed_form: repopt's own optimizer for the same rule, where there is one.
    """

    route: Literal["grad", "branch"] | None
    why: str
    degree: int | None = None
    looks_at_weights: WeightsLook = "never"
    matrices_only: bool = False
    closed_form: str | None = None


_EPS = "does not depend on the size of the gradient, apart from its eps, which belongs to each branch"

RULES: dict[str, Rule] = {
    "SGD": Rule(
        route="grad",
        why="is linear in the gradient, momentum and L2 included",
        degree=1,
        closed_form="repopt.optim.SGD",
    ),
    "ASGD": Rule(route="grad", why="is linear in the gradient, decay and averaging included", degree=1),
    "AdamW": Rule(route="branch", why=_EPS, degree=0, closed_form="repopt.optim.AdamW"),
    "Adam": Rule(
        route="branch", why=_EPS, degree=0, looks_at_weights="with coupled L2", closed_form="repopt.optim.Adam"
    ),
    "Adamax": Rule(route="branch", why=_EPS, degree=0, looks_at_weights="with coupled L2"),
    "NAdam": Rule(route="branch", why=_EPS, degree=0, looks_at_weights="with coupled L2"),
    "Adagrad": Rule(route="branch", why=_EPS, degree=0, looks_at_weights="with coupled L2"),
    "RMSprop": Rule(route="branch", why=_EPS, degree=0, looks_at_weights="with coupled L2"),
    "RAdam": Rule(
        route="branch",
        why="is of degree 1 in its first steps and of degree 0 after them",
        looks_at_weights="with coupled L2",
    ),
    "Adadelta": Rule(
        route="branch",
        why="starts from its eps, so no power of the scale comes out",
        looks_at_weights="with coupled L2",
    ),
    "Rprop": Rule(route="branch", why="looks at the gradient's sign alone", degree=0),
    "Adafactor": Rule(
        route="branch",
        why="looks at rows and columns of the gradient and at the weights' size",
        looks_at_weights="always",
    ),
    "Muon": Rule(route="branch", why="orthogonalizes each kernel's update as a whole", matrices_only=True),
    "LBFGS": Rule(route=None, why="keeps a flat list of the parameters it was made with"),
    "SparseAdam": Rule(route=None, why="takes sparse gradients, which no linear operator has"),
}

UNKNOWN = Rule(
    route="branch", why="is not in the table, and the branch route is exact for every rule with its state by parameter"
)


def rule_of(optimizer: Optimizer) -> Rule:
    """The rule of an optimizer; `UNKNOWN` for a class outside the table, a subclass of a known one included."""
    kind = type(optimizer)
    known = getattr(torch.optim, kind.__name__, None) is kind
    return RULES.get(kind.__name__, UNKNOWN) if known else UNKNOWN
