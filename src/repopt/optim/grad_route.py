"""The grad route, for rules of degree 1 without a closed form: the optimizer steps on M * g.

    W'(i+1)  =  W'(i)  -  lr * M * dL/dW'(i)                                                          (Eq. 2, Eq. 3)

The product lies in scratch memory, and `.grad` stays as it is: the step is taken by a stand-in, whose parameters share
the memory of the weights and have the product for a gradient. Nothing of the user's optimizer is swapped.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.sharding import like_shard, local_rows
from repopt.optim.clipping import clip_coefficient
from repopt.optim.planned_weights import PlannedWeights
from repopt.optim.product import product
from repopt.optim.stand_in import (
    Arguments,
    Closure,
    Group,
    aliases_of,
    clear_grads_,
    drop_grads_,
    given_late,
    pass_on_,
    settle_,
    step_hooks,
    with_closure,
)
from repopt.plans.planning import Plan
from repopt.plans.stamps import params_of


class GradRoute:
    """The hooks that hand an optimizer's step the multiplied gradients of a plan's operators."""

    name = "grad"

    def __init__(self, optimizer: Optimizer, plan: Plan, max_norm: float | None = None) -> None:
        self.plan = plan
        self._max_norm = max_norm
        self._planned = PlannedWeights(plan)
        self._stand_in: Optimizer | None = None
        self._aliases: dict[Tensor, Tensor] = {}
        self._options: list[Group] = []  # of the param groups, as both optimizers know them
        self._has_grads = False  # whether the aliases were given theirs in this step
        self._hooks = step_hooks(optimizer, self._before_step, self._after_step)

    @property
    def nbytes(self) -> int:
        """What the multipliers take."""
        return sum(self.plan.multiplier_of(name, weight).nbytes for name, weight in self._planned.now().items())

    def detach(self, optimizer: Optimizer) -> None:
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if optimizer is self._stand_in:  # a step that calls its parent's step
            return None
        names = {id(weight): name for name, weight in self._planned.held_by(optimizer).items()}
        held = params_of(optimizer)
        aliases = aliases_of([param for param in held if id(param) in names or self._max_norm is not None])
        stand_in = self._stand_in = _standing_in(optimizer, aliases)
        self._aliases, self._options = aliases, [dict(group) for group in optimizer.param_groups]
        self._has_grads = False

        def give() -> None:
            pass_on_(optimizer.param_groups, stand_in.param_groups, self._options)
            settle_({alias: param for param, alias in aliases.items()})
            self._give_grads(optimizer, names, aliases)

        def evaluating(closure: Closure) -> Closure:
            def evaluate() -> Any:
                settle_(aliases)
                if self._has_grads:
                    drop_grads_(aliases)
                loss = closure()
                give()
                return loss

            return evaluate

        args = (stand_in, *args[1:])
        wrapped = with_closure(args, kwargs, evaluating)
        if wrapped is None:
            self._give_grads(optimizer, names, aliases)

            def give_late() -> None:
                stand_in.state = _state_of(optimizer, aliases)
                give()

            wrapped = given_late(optimizer, self._hooks[0], args, kwargs, give_late)
        return wrapped

    @torch.no_grad()
    def _give_grads(self, optimizer: Optimizer, names: Mapping[int, str], aliases: Mapping[Tensor, Tensor]) -> None:
        """Gives each alias what the rule is to see of the gradient."""
        self._has_grads = True
        clear_grads_(aliases)
        whole = {param: param.grad for param in aliases if param.grad is not None}
        found = [(param, local_rows(grad)[0], names.get(id(param))) for param, grad in whole.items()]
        clip = None
        if self._max_norm is not None and found:
            clip = clip_coefficient(self.plan, found, self._max_norm, getattr(optimizer, "grad_scale", None))
        for param, grad, name in found:
            seen = grad if name is None else product(grad, self.plan.multiplier_of(name, param))
            if clip is not None:
                seen = seen * clip.to(seen)
            aliases[param].grad = like_shard(whole[param], seen)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the step left on the stand-in belongs to the optimizer."""
        stand_in = self._stand_in
        if optimizer is stand_in:
            return
        assert stand_in is not None
        settle_(self._aliases)
        if self._has_grads:
            drop_grads_(self._aliases)
        pass_on_(stand_in.param_groups, optimizer.param_groups, self._options)
        weights = {alias: param for param, alias in self._aliases.items()}
        optimizer.state.update({weights.get(key, key): value for key, value in stand_in.state.items()})
        kept = {"param_groups", "state"}
        optimizer.__dict__.update({key: value for key, value in stand_in.__dict__.items() if key not in kept})
        self._stand_in, self._aliases = None, {}


def _standing_in(optimizer: Optimizer, aliases: Mapping[Tensor, Tensor]) -> Optimizer:
    """The same optimizer, but for the aliases in place of their parameters."""
    stand_in: Optimizer = object.__new__(type(optimizer))
    stand_in.__dict__.update(optimizer.__dict__)
    stand_in.param_groups = [
        {**group, "params": [aliases.get(param, param) for param in group["params"]]}
        for group in optimizer.param_groups
    ]
    stand_in.state = _state_of(optimizer, aliases)
    return stand_in


def _state_of(optimizer: Optimizer, aliases: Mapping[Tensor, Tensor]) -> defaultdict[Any, Any]:
    return defaultdict(dict, {aliases.get(param, param): state for param, state in optimizer.state.items()})
