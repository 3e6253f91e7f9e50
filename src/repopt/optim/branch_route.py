"""The branch route: the optimizer steps the branches' kernels, the model keeps the single operator.

    before a step    W_b.grad  =  s_b * view_b(dL/dW')
    after it         W'        =  sum_b embed_b(s_b * W_b)                                                     (Eq. 4)

This is training the real block, without its forward and backward pass, whatever the rule does. The user's optimizer is
never changed: the step itself is taken by a stand-in that shares its options and state and holds the branches' kernels
in place of the operators' weights. GradScaler, zero_grad, schedulers and DDP see W' as usual, and an exception inside
a step leaves nothing swapped.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.sharding import is_sharded
from repopt.device import is_capturing
from repopt.optim.block_kernels import BlockKernels
from repopt.optim.contract import PlannedWeights
from repopt.optim.grad_route import Arguments, with_closure
from repopt.plans.planning import Plan, check_kernel_names

# The key of a saved param group under which its operators' branches are: optimizers look into every entry of the state
# itself, but not into options that they do not know.
_SAVED = "repopt_branches"


class BranchRoute:
    """The hooks that let an optimizer step a plan's branches."""

    name = "branch"

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
        max_norm: float | None = None,
    ) -> None:
        self.plan = plan
        self._planned = PlannedWeights(plan)
        self._given = kernels
        self._blocks = {name: BlockKernels(plan, name) for name in plan.operators}
        self._stand_in: Optimizer | None = None
        self._put_away: dict[Tensor, Any] = {}
        check_kernel_names(kernels or {}, plan.blocks)
        try:
            self._held(optimizer)
            self._load(optimizer)  # what was loaded before attach
        except Exception:
            optimizer.state.update(self._put_away)
            raise
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_post_hook(self._load),
        ]

    @property
    def nbytes(self) -> int:
        """What the branches' kernels take."""
        return sum(kernel.nbytes for branches in self._blocks.values() for kernel in branches.kernels.values())

    def detach(self, optimizer: Optimizer) -> None:
        for hook in self._hooks:
            hook.remove()
        optimizer.state.update(self._put_away)

    # the step

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if optimizer is self._stand_in:  # a step that calls its parent's step
            return None
        weights = self._held(optimizer)
        self._follow(weights)
        self._stand_in = self._standing_in(optimizer, weights)
        args = (self._stand_in, *args[1:])
        wrapped = with_closure(args, kwargs, lambda closure: self._evaluating(closure, weights))
        if wrapped is None:
            self._split_grads(weights)
        return wrapped or (args, kwargs)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if optimizer is self._stand_in:
            return
        assert self._stand_in is not None
        self._take_over(optimizer, self._stand_in)
        self._stand_in = None
        for name, weight in self._held(optimizer).items():
            branches = self._blocks[name]
            if branches.was_written(weight):
                raise RuntimeError(
                    f"{type(optimizer).__name__} moved the weight of {name!r} itself instead of what its param_groups "
                    "hold, so it cannot take the branch route"
                )
            if weight.grad is not None:
                branches.merge_into_(weight)
            branches.forget_grads()

    def _evaluating(self, closure: Callable[[], Any], weights: Mapping[str, Tensor]) -> Callable[[], Any]:
        evaluations = 0

        def evaluate() -> Any:
            nonlocal evaluations
            with torch.no_grad():
                for name, weight in weights.items() if evaluations else ():  # the rule may have moved the kernels
                    self._blocks[name].merge_into_(weight)
            evaluations += 1
            loss = closure()
            with torch.no_grad():
                self._split_grads(weights)
            return loss

        return evaluate

    def _held(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The planned weights that the optimizer holds; one that is new to it gets its kernels here."""
        weights = self._planned.held_by(optimizer)
        for name, weight in weights.items():
            if not self._blocks[name].belongs_to(weight):
                self._start(optimizer, name, weight)
        return weights

    def _follow(self, weights: Mapping[str, Tensor]) -> None:
        """Spreads what was written to the weights from outside over the kernels.

        Versions tell most writes; those through `.data` show only in the values, which are compared unless a CUDA graph
        is being captured, where the host cannot look.
        """
        for name, weight in weights.items():
            self._blocks[name].check_place(weight)
        written = [name for name, weight in weights.items() if self._blocks[name].was_written(weight)]
        others = [name for name in weights if name not in written]
        if others and not is_capturing(weights[others[0]]):
            flags = torch.stack([self._blocks[name].differs_from(weights[name]) for name in others]).tolist()
            written += [name for name, differs in zip(others, flags, strict=True) if differs]
        for name in written:
            self._blocks[name].follow_(weights[name])

    def _split_grads(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self._blocks[name].split_grad(weight.grad)

    def _standing_in(self, optimizer: Optimizer, weights: Mapping[str, Tensor]) -> Optimizer:
        """The same optimizer, but for the branches' kernels in place of the operators' weights."""
        names = {id(weight): name for name, weight in weights.items()}
        stand_in: Optimizer = object.__new__(type(optimizer))
        stand_in.__dict__.update(optimizer.__dict__)
        stand_in.param_groups = [self._with_branches(group, names) for group in optimizer.param_groups]
        stand_in.state = defaultdict(dict, optimizer.state)
        for name in weights:
            stand_in.state.update(self._blocks[name].states)
        return stand_in

    def _with_branches(self, group: dict[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
        params: list[Tensor] = []
        labels: list[str] = []
        given = group.get("param_names") or [""] * len(group["params"])
        for param, label in zip(group["params"], given, strict=True):
            own = self._blocks[names[id(param)]].kernels if id(param) in names else None
            params.extend([param] if own is None else own.values())
            labels.extend([label] if own is None else (f"{label}.{branch}" for branch in own))
        return {**group, "params": params, **({"param_names": labels} if "param_names" in group else {})}

    def _take_over(self, optimizer: Optimizer, stand_in: Optimizer) -> None:
        """What the step left on the stand-in belongs to the optimizer; the branches' states stay here."""
        for group, stepped in zip(optimizer.param_groups, stand_in.param_groups, strict=True):
            group.update({key: value for key, value in stepped.items() if key not in {"params", "param_names"}})
        for branches in self._blocks.values():
            for kernel in branches.kernels.values():
                if kernel in stand_in.state:
                    branches.states[kernel] = stand_in.state.pop(kernel)
        optimizer.state.update(stand_in.state)
        kept = {"param_groups", "state"}
        optimizer.__dict__.update({key: value for key, value in stand_in.__dict__.items() if key not in kept})

    # the state

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        names = {id(weight): name for name, weight in self._held(optimizer).items()}
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            planned = [names[id(param)] for param in group["params"] if id(param) in names]
            saved[_SAVED] = {name: self._blocks[name].saved() for name in planned}

    @torch.no_grad()
    def _load(self, optimizer: Optimizer) -> None:
        """Takes the branches out of the param groups, where `load_state_dict` left them."""
        self._held(optimizer)
        for group in optimizer.param_groups:
            on_device = bool(group.get("fused") or group.get("capturable"))
            for name, saved in group.get(_SAVED, {}).items():
                self._blocks[name].load(saved, on_device)
        for group in optimizer.param_groups:  # only now: an attach that fails leaves them for the next
            group.pop(_SAVED, None)

    @torch.no_grad()
    def _start(self, optimizer: Optimizer, name: str, weight: Tensor) -> None:
        if is_sharded(weight):
            raise ValueError(
                f"the branch route does not work on sharded parameters such as the weight of {name!r}: with "
                "fully_shard use SGD or one of repopt.optim"
            )
        branches = self._blocks[name]
        branches.start(weight, None if self._given is None else self._given.get(name, {}))
        found = optimizer.state.pop(weight, {})
        if found:
            self._put_away[weight] = found
            branches.adopt(found, weight)
