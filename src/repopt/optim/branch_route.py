"""The branch route: the optimizer steps the branches' kernels, the model keeps the single operator.

    before a step    W_b.grad  =  s_b * view_b(dL/dW')
    after it         W'        =  sum_b embed_b(s_b * W_b)                                                     (Eq. 4)

This is training the real block, without its forward and backward pass, whatever the rule does. The user's optimizer is
never changed: the step itself is taken by a stand-in that shares its options and state and holds the branches' kernels
in place of the operators' weights. GradScaler, zero_grad, schedulers and DDP see W' as usual, and an exception inside
a step leaves nothing swapped.

A write to W' between two steps is spread over the kernels. It is noticed by torch's version of the tensor and by its
address, so that no step compares values or waits for the device. A write that torch does not count (through `.data`, by
a fused or custom kernel, by the replay of a CUDA graph) is not noticed: the next step overwrites it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.sharding import is_sharded
from repopt.device import is_capturing
from repopt.optim.block_kernels import BlockKernels, BlockSet, in_sets
from repopt.optim.clipping import coefficient
from repopt.optim.fingerprints import check_loaded, stamp_groups_
from repopt.optim.planned_weights import PlannedWeights
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
from repopt.plans.planning import Plan, check_kernel_names
from repopt.plans.stamps import KEY, SAVED, params_of


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
        self._max_norm = max_norm
        self._aliases: dict[Tensor, Tensor] = {}  # of the parameters outside the plan, where gradients are clipped
        self._states: dict[Tensor, Any] = {}
        self._blocks = {name: BlockKernels(plan, name, self._states) for name in plan.operators}
        self._stand_in: Optimizer = object.__new__(type(optimizer))
        self._weights: dict[str, Tensor] = {}  # of the last step, and what was made for them
        self._sets: list[BlockSet] = []
        self._captured: list[BlockSet] = []  # earlier sets that a CUDA graph reads
        self._kernels: list[Tensor] = []
        self._swaps: list[_Swap] = []
        self._options: list[Group] = []  # of the param groups, as the optimizer and its stand-in know them
        self._given_states: dict[Any, Any] = {}  # the dicts that the stand-in began a step with
        self._has_grads = False  # whether the kernels were given theirs in this step
        self._put_away: dict[Tensor, Any] = {}
        check_kernel_names(kernels or {}, plan.blocks)
        # of the blocks that have not started; where some are given, a block without any is an error
        self._given = {} if kernels is None else {name: kernels.get(name, {}) for name in plan.operators}
        try:
            self._held(optimizer)
            self._load(optimizer)  # what was loaded before attach
        except Exception:
            optimizer.state.update(self._put_away)
            raise
        self._hooks = [
            *step_hooks(optimizer, _untraced(self._before_step), _untraced(self._after_step)),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_post_hook(self._reload),
        ]

    @property
    def nbytes(self) -> int:
        """What the branches' kernels take, those of blocks that have not started too."""
        held = (*self._given.values(), *(block.kernels for block in self._blocks.values()))
        return sum(kernel.nbytes for kernels in held for kernel in kernels.values())

    def detach(self, optimizer: Optimizer) -> None:
        for hook in self._hooks:
            hook.remove()
        for weight in self._weights.values():
            optimizer.state.pop(weight, None)
        for group in optimizer.param_groups:
            group.pop(SAVED, None)
        optimizer.state.update(self._put_away)

    # the step

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if optimizer is self._stand_in:  # a step that calls its parent's step
            return None
        self._take_loaded(optimizer)
        weights = self._held(optimizer)
        self._follow(weights)
        self._prepare_stand_in(optimizer, weights)
        args = (self._stand_in, *args[1:])
        wrapped = with_closure(args, kwargs, partial(self._evaluating, optimizer))
        if wrapped is None:
            self._give_grads()
            wrapped = given_late(optimizer, self._hooks[0], args, kwargs, partial(self._give_late, optimizer))
        return wrapped

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if optimizer is self._stand_in:
            return
        written = self._written(self._weights)
        if written:
            raise RuntimeError(
                f"{type(optimizer).__name__} moved the weight of {written[0]!r} itself instead of what its "
                "param_groups hold, so it cannot take the branch route"
            )
        self._merge()  # first: a GPU works on it while the rest is done here
        settle_(self._aliases)
        self._drop_grads()
        for each in self._sets:
            each.release()
        self._unscale_(optimizer)
        self._take_over(optimizer)

    def _unscale_(self, optimizer: Optimizer) -> None:
        """Leaves gradients that the step did not see as fused optimizers leave theirs: without GradScaler's scale."""
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if scale is None:
            return
        factor = scale.reciprocal() if found_inf is None else torch.where(found_inf == 0, scale.reciprocal(), 1)
        for param in (*self._weights.values(), *self._aliases):
            if param.grad is not None:
                param.grad.mul_(factor.to(param.grad.device))

    def _evaluating(self, optimizer: Optimizer, closure: Closure) -> Closure:
        moved = [(kernel._version, kernel.data_ptr()) for kernel in self._kernels]

        def evaluate() -> Any:
            with torch.no_grad():
                if self._has_grads:  # the rule may have moved the kernels that have some
                    self._merge()
                elif moved != [(kernel._version, kernel.data_ptr()) for kernel in self._kernels]:
                    self._merge(everything=True)
                settle_(self._aliases)
                self._drop_grads()
            loss = closure()
            self._give_again(optimizer)
            return loss

        return evaluate

    def _give_late(self, optimizer: Optimizer) -> None:
        """Prepares the stand-in again, after the hooks that came later."""
        self._give_state(optimizer)
        self._give_again(optimizer)

    @torch.no_grad()
    def _give_again(self, optimizer: Optimizer) -> None:
        """Gives the stand-in what others have changed since it was prepared: options, weights and gradients."""
        pass_on_(optimizer.param_groups, self._stand_in.param_groups, self._options)
        self._follow(self._weights)
        settle_({alias: param for param, alias in self._aliases.items()})
        self._give_grads()

    def _drop_grads(self) -> None:
        """Drops the gradients of weights whose kernels have lost theirs: the rule called `zero_grad`."""
        if not self._has_grads:
            return
        drop_grads_(self._aliases)
        for name, weight in self._weights.items():
            if weight.grad is not None and all(kernel.grad is None for kernel in self._blocks[name].kernels.values()):
                weight.grad = None

    def _held(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The planned weights that the optimizer holds; one that is new to it gets its kernels here."""
        weights = self._planned.held_by(optimizer)
        if weights is not self._weights:
            for name, weight in weights.items():
                if not self._blocks[name].belongs_to(weight):
                    self._start(optimizer, name, weight)
        return weights

    def _written(self, weights: Mapping[str, Tensor]) -> list[str]:
        """The operators whose weights someone else wrote since the kernels made them, as far as torch tells."""
        blocks = self._blocks
        return [name for name, weight in weights.items() if blocks[name].mark != (weight._version, weight.data_ptr())]

    def _follow(self, weights: Mapping[str, Tensor]) -> None:
        """Spreads what was written to the weights from outside over the kernels."""
        written = self._written(weights)
        for name in written:
            self._blocks[name].check_place(weights[name])
            if is_capturing(weights[name]):
                raise RuntimeError(
                    f"the weight of {name!r} was written since the last step, which cannot be followed while a CUDA "
                    "graph is captured: take a step before the capture"
                )
        if weights is not self._weights or any(self._blocks[name].was_moved(weights[name]) for name in written):
            self._captured += [each for each in self._sets if each.is_captured]
            self._sets = in_sets(self._blocks, weights)
        for each in self._sets if written else ():
            each.follow_(written)

    def _give_grads(self) -> None:
        """Gives the kernels their gradients; with a largest norm, clips what the stand-in sees as torch would."""
        for each in self._sets:
            each.spread(again=self._has_grads)
        self._has_grads = True
        if self._max_norm is None:
            return
        clear_grads_(self._aliases)
        own = [kernel.grad for kernel in self._kernels if kernel.grad is not None]
        others = {alias: param.grad for param, alias in self._aliases.items() if param.grad is not None}
        total = torch.nn.utils.get_total_norm([*own, *others.values()])
        clip = coefficient(total, self._max_norm, getattr(self._stand_in, "grad_scale", None))
        for grad in own:
            grad.mul_(clip.to(grad.device))
        for alias, grad in others.items():
            alias.grad = grad * clip.to(grad.device)

    def _merge(self, *, everything: bool = False) -> None:
        for each in self._sets:
            each.merge_(everything=everything)

    def _prepare_stand_in(self, optimizer: Optimizer, weights: dict[str, Tensor]) -> None:
        """Makes the stand-in the same optimizer, but for the branches' kernels in place of the operators' weights."""
        groups = optimizer.param_groups
        if weights is not self._weights or self._max_norm is not None:  # the same dict: the same params in all groups
            blocks = {id(weight): self._blocks[name] for name, weight in weights.items()}
            if self._max_norm is not None:
                self._aliases = aliases_of([param for param in params_of(optimizer) if id(param) not in blocks])
            self._swaps = [_Swap(group["params"], blocks, self._aliases) for group in groups]
            self._kernels = [kernel for block in blocks.values() for kernel in block.kernels.values()]
            self._weights = weights
        self._options, self._has_grads = [dict(group) for group in groups], False
        attributes = vars(self._stand_in)
        attributes.clear()
        attributes.update(vars(optimizer))
        self._stand_in.param_groups = [swap.swapped(group) for group, swap in zip(groups, self._swaps, strict=True)]
        self._give_state(optimizer)

    def _give_state(self, optimizer: Optimizer) -> None:
        for name, weight in self._weights.items():
            if weight not in optimizer.state:  # where it was put after the last step: someone has started it anew
                self._blocks[name].forget()
        state = self._stand_in.state = defaultdict(dict)
        if self._aliases:
            state.update({self._aliases.get(key, key): held for key, held in optimizer.state.items()})
        else:
            state.update(optimizer.state)
        for weight in self._weights.values():
            state.pop(weight, None)
        state.update(self._states)
        self._given_states = dict(state)

    def _take_over(self, optimizer: Optimizer) -> None:
        """What the step left on the stand-in belongs to the optimizer; the branches' states stay here."""
        attributes = vars(self._stand_in)
        pass_on_(attributes.pop("param_groups"), optimizer.param_groups, self._options)
        state = attributes.pop("state")
        # most steps write into the dicts that are there
        if list(map(id, state.values())) != list(map(id, self._given_states.values())):
            owners = {alias: param for param, alias in self._aliases.items()}
            for key in self._given_states.keys() - state.keys():
                self._states.pop(key, None)
                optimizer.state.pop(owners.get(key, key), None)
            for kernel in self._kernels:
                if kernel in state:
                    self._states[kernel] = state.pop(kernel)
            optimizer.state.update({owners.get(key, key): held for key, held in state.items()})
        for weight in self._weights.values():
            optimizer.state.setdefault(weight, {})
        vars(optimizer).update(attributes)
        attributes.clear()

    # the state

    def _take_loaded(self, optimizer: Optimizer) -> None:
        """Takes over a state that was loaded without torch's hooks, by a method of the optimizer's own."""
        groups = optimizer.param_groups
        has_saved = any(SAVED in group for group in groups)
        if not has_saved and all(KEY in group for group in groups):
            return
        held = self._planned.held_by(optimizer).values()
        if has_saved or not all(optimizer.state.get(weight) == {} for weight in held):  # else groups were made anew
            check_loaded(optimizer)
        stamp_groups_(optimizer)
        if has_saved:
            self._reload(optimizer)

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._take_loaded(optimizer)
        state = state_dict["state"]
        state_dict["state"] = {key: held for key, held in state.items() if not isinstance(held, dict) or held}
        names = {id(weight): name for name, weight in self._held(optimizer).items()}
        for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
            planned = [names[id(param)] for param in group["params"] if id(param) in names]
            saved[SAVED] = {name: self._blocks[name].saved() for name in planned}

    def _reload(self, optimizer: Optimizer) -> None:
        """What is loaded replaces everything: the empty state of a new optimizer ends the branches' states, too."""
        for name, weight in self._held(optimizer).items():
            self._blocks[name].forget()
            self._adopt(optimizer, name, weight)
        self._load(optimizer)

    @torch.no_grad()
    def _load(self, optimizer: Optimizer) -> None:
        """Takes the branches out of the param groups, where `load_state_dict` left them."""
        held = self._held(optimizer)
        for group in optimizer.param_groups:
            on_device = bool(group.get("fused") or group.get("capturable"))
            for name, saved in group.get(SAVED, {}).items():
                self._blocks[name].load(saved, on_device)
                optimizer.state.setdefault(held[name], {})
        for group in optimizer.param_groups:  # only now: an attach that fails leaves them for the next
            group.pop(SAVED, None)

    @torch.no_grad()
    def _start(self, optimizer: Optimizer, name: str, weight: Tensor) -> None:
        if is_sharded(weight):
            raise ValueError(
                f"the branch route does not work on sharded parameters such as the weight of {name!r}: with "
                "fully_shard use SGD or one of repopt.optim"
            )
        self._weights = {}
        self._blocks[name].start(weight, self._given.get(name))
        self._given.pop(name, None)
        self._adopt(optimizer, name, weight)

    def _adopt(self, optimizer: Optimizer, name: str, weight: Tensor) -> None:
        """Takes over what the optimizer's constructor left for a weight."""
        found = optimizer.state.pop(weight, {})
        if found:
            self._put_away[weight] = found
            self._blocks[name].adopt(found, weight)
            optimizer.state[weight] = {}


class _Swap:
    """The parameters of a group, with the branches' kernels in place of the operators' weights."""

    def __init__(
        self, params: Sequence[Tensor], blocks: Mapping[int, BlockKernels], aliases: Mapping[Tensor, Tensor]
    ) -> None:
        self._own = [
            blocks[id(param)].kernels if id(param) in blocks else {"": aliases.get(param, param)} for param in params
        ]
        self._stepped = [kernel for own in self._own for kernel in own.values()]

    def swapped(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The group's options with these parameters."""
        names = group.get("param_names")
        if names is None:
            return {**group, "params": list(self._stepped)}
        labels = [
            f"{name}.{branch}" if branch else name for name, own in zip(names, self._own, strict=True) for branch in own
        ]
        return {**group, "params": list(self._stepped), "param_names": labels}


def _untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that a compiler leaves as it is: traced, it would read other versions than the weights have."""

    def called(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(hook)(*args)  # type: ignore[no-untyped-call]
        return hook(*args)

    return called
