"""attach(): from here on, `optimizer.step()` trains the imagined blocks.

CSLA block + regular optimizer = single operator + optimizer with GR                                    (Proposition)
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from repopt.attachment.grad import GradRoute
from repopt.plans import Plan
from repopt.rules import RULES, rule_of

Route = Literal["auto", "grad", "branch"]

_ATTRIBUTE = "_repopt_handle"


def attach(
    optimizer: Optimizer,
    plan: Plan,
    route: Route = "auto",
    allow_inexact: bool = False,
    kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> "Handle":
    """Makes an optimizer train a plan's operators as the blocks that they imagine.

    Args:
        optimizer: a torch optimizer that holds the planned, trainable weights.
        plan: a plan with scales.
        route: `grad` multiplies the gradient before the step; `auto` takes the route that is exact for the optimizer.
        allow_inexact: let a route through that is not exact for this optimizer.
        kernels: the block's own kernels, as `plan.init_()` returns them; the grad route does not depend on them.

    Returns:
        A handle: `.route`, `.exact`, `.detach()`.

    Raises:
        ValueError: the optimizer is attached already, lacks a planned weight, or has no exact route.

    Example:
        >>> plan.init_()
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        >>> handle = attach(optimizer, plan)
    """
    if route not in {"auto", "grad", "branch"}:
        raise ValueError(f"route is 'auto', 'grad' or 'branch', not {route!r}")
    if hasattr(optimizer, _ATTRIBUTE):
        raise ValueError("this optimizer is attached to a plan already: call detach() on its handle first")
    _check_held(optimizer, plan)
    exact = _check_exact(optimizer, route, allow_inexact)
    return Handle(optimizer, GradRoute(plan), exact=exact)


class Handle:
    """What `attach` returns.

    Attributes:
        route: `grad`.
        exact: whether the training equals the imagined block's.
    """

    route = "grad"

    def __init__(self, optimizer: Optimizer, route: GradRoute, *, exact: bool) -> None:
        self.exact = exact
        self._route = route
        self._optimizer = optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(route.before_step),
            optimizer.register_step_post_hook(route.after_step),
        ]
        setattr(optimizer, _ATTRIBUTE, self)
        # Hooks survive neither deepcopy nor pickle: a copy would train the plain model without a word.
        optimizer.__dict__["__reduce_ex__"] = _refuse_copy

    @property
    def nbytes(self) -> int:
        """What repopt keeps beside the optimizer's own state."""
        return self._route.nbytes

    def detach(self) -> None:
        """Gives the optimizer back as it was."""
        for hook in self._hooks:
            hook.remove()
        for attribute in (_ATTRIBUTE, "__reduce_ex__"):
            self._optimizer.__dict__.pop(attribute, None)

    def __repr__(self) -> str:
        return f"Handle(route={self.route!r}, exact={self.exact})"


def _check_held(optimizer: Optimizer, plan: Plan) -> None:
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    missing = [
        name for name, module in plan.modules().items() if module.weight.requires_grad and id(module.weight) not in held
    ]
    if missing:
        raise ValueError(
            f"the optimizer does not hold the weight of {missing[0]!r}"
            + (f" and of {len(missing) - 1} more planned operators" if len(missing) > 1 else "")
            + ": give it the parameters of the plan's model, or freeze the operator"
        )


def _check_exact(optimizer: Optimizer, route: Route, allow_inexact: bool) -> bool:
    name = type(optimizer).__name__
    if route == "branch":
        raise ValueError("the branch route is not there yet: use SGD, whose grad route is exact")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError(f"{name}(differentiable=True) cannot be attached: gradients are multiplied in place")
    rule = rule_of(optimizer)
    if rule is not None and rule.degree == 1:
        return True
    if route == "grad" and allow_inexact:
        return False
    known = ", ".join(each.__name__ for each, its in RULES.items() if its.degree == 1)
    raise ValueError(
        f"multiplying the gradient is exact only for rules of degree 1 in the gradient ({known}), which {name} is not "
        'known to be: use one of these, or pass route="grad", allow_inexact=True to do it all the same'
    )


def _refuse_copy(protocol: int) -> Any:
    raise TypeError(
        "an optimizer attached by repopt cannot be copied or pickled, since its hooks would be lost: save its "
        "state_dict(), or detach() it first"
    )
