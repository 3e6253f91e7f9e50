"""attach(): from here on, `optimizer.step()` trains the imagined blocks.

CSLA block + regular optimizer = single operator + optimizer with GR                                    (Proposition)
"""

import warnings
from collections.abc import Mapping
from typing import Literal, SupportsIndex, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.sharding import local_rows
from repopt.optim.branch_route import BranchRoute
from repopt.optim.clipping import check_max_norm
from repopt.optim.contract import check_held, check_reached, unreached
from repopt.optim.fingerprints import fingerprint, guard_loading, stamping, unstamp_
from repopt.optim.grad_route import GradRoute
from repopt.optim.rep_optimizer import RepOptimizer, refuse_copy
from repopt.optim.rules import RULES, rule_of
from repopt.optim.sgd import SGDRoute
from repopt.plans.choices import check_choice
from repopt.plans.drawn import as_torch_draws
from repopt.plans.planning import Plan, check_plan

Route = Literal["auto", "grad", "branch"]

_ATTRIBUTE = "_repopt_handle"


def attach(
    optimizer: Optimizer,
    plan: Plan,
    route: Route = "auto",
    allow_inexact: bool = False,
    kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
    max_norm: float | None = None,
) -> "Handle":
    """Makes an optimizer train a plan's operators as the blocks that they imagine.

    Do not clip with `torch.nn.utils.clip_grad_norm_`, nor let a framework call it: it goes by the operators' gradients,
    whose norm is not that of the blocks, and repopt cannot see that it was called. Use `max_norm`, or
    `repopt.clip_grad_norm_`.

    `.grad` is only read. On the branch route a write to a planned weight between two steps is spread over the branches
    if torch counts it, as it does any in-place operation and `load_state_dict`. A write through `.data`, by a custom
    kernel or by the replay of a CUDA graph is not noticed, and the next step overwrites it: tell torch of it with
    `torch.autograd.graph.increment_version(weight)`.

    Args:
        optimizer: an optimizer that holds the planned, trainable weights.
        plan: a plan with scales.
        route: `grad` lets the step see the multiplied gradient; `branch` lets the optimizer step the branches' own
            kernels; `auto` takes the cheapest route that is exact for the optimizer.
        allow_inexact: let the grad route through for a rule for which it is not exact.
        kernels: the block's own kernels, as `plan.init_()` returns them, for rules that look at the weights on the
            branch route; without them the split of least norm.
        max_norm: clip the gradients of all parameters to this norm of the imagined blocks, inside the step.

    Returns:
        A handle with `.route`, `.exact` and `.detach()`.

    Raises:
        ValueError: the optimizer is attached already, lacks a planned weight, has no exact route, or holds the state of
            other training.

    Warns:
        UserWarning: the planned weights look as torch drew them, so `plan.init_()` was probably forgotten.

    Example:
        >>> kernels = plan.init_()
        >>> optimizer = torch.optim.RAdam(net.parameters(), lr=1e-3)
        >>> handle = attach(optimizer, plan, kernels=kernels)
    """
    check_plan(plan)
    if kernels is None and look_as_torch_drew_them(plan):
        warnings.warn(
            "the planned weights look as torch drew them, which is not where the blocks start: call plan.init_() "
            "before attach, or load trained weights before it",
            stacklevel=2,
        )
    return attach_as_is(optimizer, plan, route, allow_inexact, kernels, max_norm)


def attach_as_is(
    optimizer: Optimizer,
    plan: Plan,
    route: Route = "auto",
    allow_inexact: bool = False,
    kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
    max_norm: float | None = None,
) -> "Handle":
    """The same, for callers that know where the weights come from: it warns of nothing."""
    check_plan(plan)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach takes a torch optimizer first and the plan second, not a {type(optimizer).__name__}")
    check_choice("route", route, get_args(Route))
    if max_norm is not None:
        check_max_norm(max_norm)
    _check_attachable(optimizer)
    check_held(optimizer, plan)
    chosen, exact = _choose(optimizer, route, allow_inexact)
    if allow_inexact:
        exact = exact and unreached(plan) is None
    else:
        check_reached(plan)
    with stamping(optimizer, fingerprint(plan, chosen)):
        if type(optimizer) is torch.optim.SGD and chosen == "grad":
            return Handle(optimizer, SGDRoute(optimizer, plan, max_norm), plan, exact=exact)
        if chosen == "grad":
            return Handle(optimizer, GradRoute(optimizer, plan, max_norm), plan, exact=exact)
        _check_shapes(optimizer, plan)
        return Handle(optimizer, BranchRoute(optimizer, plan, kernels, max_norm), plan, exact=exact)


class Handle:
    """What `attach` returns.

    Attributes:
        route: `grad` or `branch`.
        exact: whether the training equals the imagined block's.
        plan: what the optimizer is attached to.
    """

    def __init__(
        self, optimizer: Optimizer, route: SGDRoute | GradRoute | BranchRoute, plan: Plan, *, exact: bool
    ) -> None:
        self.route = route.name
        self.exact = exact
        self.plan = plan
        self._route = route
        self._optimizer = optimizer
        self._guards = guard_loading(optimizer)
        setattr(optimizer, _ATTRIBUTE, self)
        # Hooks survive neither deepcopy nor pickle: a copy would train the plain model without a word.
        optimizer.__dict__["__reduce_ex__"] = refuse_copy

    @property
    def nbytes(self) -> int:
        """What repopt keeps beside the optimizer's own state."""
        return self._route.nbytes

    def detach(self) -> None:
        """Gives the optimizer back as it was; the branch route's states go. A second call does nothing."""
        if getattr(self._optimizer, _ATTRIBUTE, None) is not self:
            return
        for guard in self._guards:
            guard.remove()
        self._route.detach(self._optimizer)
        unstamp_(self._optimizer)
        for attribute in (_ATTRIBUTE, "__reduce_ex__"):
            self._optimizer.__dict__.pop(attribute, None)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        attached = getattr(self._optimizer, _ATTRIBUTE, None) is self
        return refuse_copy(protocol) if attached else super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"Handle(route={self.route!r}, exact={self.exact})"


def look_as_torch_drew_them(plan: Plan) -> bool:
    """Whether all planned weights are as torch draws them.

    A block with fewer than two scales other than 0 says nothing, since `init_` draws it in the same way. Neither do
    fewer than a thousand weights in all.
    """
    seen = 0
    for name, module in plan.modules().items():
        weight, _ = local_rows(module.weight)
        count = weight.numel()
        if sum(bool(scale.any()) for scale in plan.constants(name).values()) < 2 or weight.is_meta or not count:
            continue
        if not as_torch_draws(weight):
            return False
        seen += count
    return seen >= 1000


def automatic_route(optimizer: Optimizer) -> str:
    """The route that `attach` takes by itself; raises where the optimizer cannot be attached."""
    _check_attachable(optimizer)
    return _choose(optimizer, "auto", allow_inexact=False)[0]


def _check_attachable(optimizer: Optimizer) -> None:
    name = type(optimizer).__name__
    if hasattr(optimizer, _ATTRIBUTE):
        raise ValueError("this optimizer is attached to a plan already: call detach() on its handle first")
    if isinstance(optimizer, RepOptimizer):
        raise ValueError(f"repopt.optim.{name} already trains the imagined blocks: do not attach it")
    inner = next((key for key, value in vars(optimizer).items() if isinstance(value, Optimizer)), None)
    if inner is not None:
        raise ValueError(f"{name} wraps another optimizer, its attribute {inner!r}: attach to that one")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks") or not hasattr(type(optimizer).step, "hooked"):
        raise ValueError(f"{name} does not run torch's step hooks, so it cannot be attached")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError(f"{name}(differentiable=True) cannot be attached: its steps are not followed by autograd")
    outside = next((verb for verb in ("train", "first_step") if callable(getattr(optimizer, verb, None))), None)
    if outside is not None:
        raise ValueError(
            f"{name} moves weights outside step() (it has a method {outside}()), where no hook follows it: use an "
            "optimizer that moves them in step() alone"
        )


def _choose(optimizer: Optimizer, route: Route, allow_inexact: bool) -> tuple[str, bool]:
    name, rule = type(optimizer).__name__, rule_of(optimizer)
    if rule.route is None:
        raise ValueError(f"{name} cannot be attached: it {rule.why}")
    chosen = rule.route if route == "auto" else route
    if chosen == "branch":
        _check_keeps_no_lists(optimizer)
    if chosen == "branch" or rule.route == "grad":
        return chosen, True
    if allow_inexact:
        return chosen, False
    linear = ", ".join(each for each, known in RULES.items() if known.route == "grad")
    raise ValueError(
        f"multiplying the gradient is exact only for rules of degree 1 in the gradient ({linear}), and {name} "
        f'{rule.why}: use route="branch", or pass allow_inexact=True to do it all the same'
    )


def _check_keeps_no_lists(optimizer: Optimizer) -> None:
    """Raises if tensors go by their position among the parameters, where each branch is one of its own in a step."""
    kept = next((key for key, value in vars(optimizer).items() if _is_list_of_tensors(value)), None)
    if kept is not None:
        raise ValueError(
            f"{type(optimizer).__name__} cannot be attached: it keeps a list of tensors, its attribute {kept!r}, and "
            "the branch route steps more parameters than it was made with: let it keep them in self.state[param]"
        )


def _is_list_of_tensors(value: object) -> bool:
    return isinstance(value, list | tuple) and any(
        isinstance(each, Tensor) or _is_list_of_tensors(each) for each in value
    )


def _check_shapes(optimizer: Optimizer, plan: Plan) -> None:
    if not rule_of(optimizer).matrices_only:
        return
    for name, block in plan.blocks.items():
        for branch, placement in block.branches.items():
            if len(placement.kernel_shape) != 2:
                raise ValueError(
                    f"{type(optimizer).__name__} takes matrices only, and the kernel of branch {branch!r} of {name!r} "
                    f"has {len(placement.kernel_shape)} dimension(s): leave the branch out or use another optimizer"
                )
