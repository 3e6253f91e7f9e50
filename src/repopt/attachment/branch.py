"""The branch route: the optimizer steps the branches' kernels, the model keeps the single operator.

    before a step    W_b.grad  =  s_b * view_b(dL/dW')
    after it         W'        =  sum_b embed_b(s_b * W_b)                                                     (Eq. 4)

This is training the real block, without its forward and backward pass, whatever the rule does. The user's optimizer is
never changed: the step itself is taken by a stand-in that shares its options and state and holds the branches' kernels
in place of the operators' weights. So GradScaler, zero_grad, schedulers and DDP see W' as ever, and an exception inside
a step leaves nothing swapped.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repopt import csla
from repopt.attachment.closures import Arguments, with_closure
from repopt.fingerprints import is_constant
from repopt.gpu import is_capturing
from repopt.held import held_weights
from repopt.plans import Plan
from repopt.sharding import is_sharded

# The key of a saved param group under which its operators' branches are: optimizers look into every entry of the state
# itself, but not into options that they do not know.
_SAVED = "repopt_branches"


class BranchRoute:
    """The hooks that let an optimizer step a plan's branches."""

    name = "branch"

    def __init__(
        self, optimizer: Optimizer, plan: Plan, kernels: Mapping[str, Mapping[str, Tensor]] | None = None
    ) -> None:
        self.plan = plan
        self._sites = plan.sites()
        self._given = kernels
        self._blocks = {name: _Branches(plan, name) for name in plan.operators}
        self._stand_in: Optimizer | None = None
        self._put_away: dict[Tensor, Any] = {}
        self._held(optimizer)
        self._load(optimizer)  # what was loaded before attach
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
        weights = held_weights(optimizer, self._sites)
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
            for name, saved in group.pop(_SAVED, {}).items():
                self._blocks[name].load(saved, on_device)

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
            branches.adopt(found, weight)
            self._put_away[weight] = found


class _Branches:
    """The kernels of one block, and the optimizer's state of each."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.name = name
        self.block = plan.blocks[name]
        self.kernels: dict[str, nn.Parameter] = {}
        self.states: dict[Tensor, Any] = {}
        self._constants = plan.constants(name)
        self._weight: weakref.ref[Tensor] | None = None
        self._seen: tuple[int, int] | None = None

    def start(self, weight: Tensor, kernels: Mapping[str, Tensor] | None) -> None:
        """From kernels of the block's own, or from the split of least norm."""
        self._weight = weakref.ref(weight)
        self._seen = None
        self.states.clear()
        self._constants = {branch: constant.to(weight) for branch, constant in self._constants.items()}
        if kernels is None:
            kernels = csla.least_norm_split(self.block, self._constants, weight, self.name)
        else:
            csla.check_kernels(self.block, kernels, self.name)
        self.kernels = {
            branch: nn.Parameter(kernels[branch].detach().to(weight, copy=True).contiguous())
            for branch in self.block.branches
        }

    def belongs_to(self, weight: Tensor) -> bool:
        return self._weight is not None and self._weight() is weight

    def adopt(self, state: Mapping[str, Any], weight: Tensor) -> None:
        """Gives each kernel what the optimizer's constructor left for the weight, such as Adagrad's first sum."""
        for key, value in state.items():
            if isinstance(value, Tensor) and not is_constant(value):
                raise ValueError(
                    f"the optimizer already holds a state of {self.name!r} ({key}) that the block cannot take over: "
                    "attach before the first step"
                )
        for kernel in self.kernels.values():
            self.states[kernel] = {
                key: torch.full_like(kernel, value.flatten()[0].item(), dtype=value.dtype)
                if isinstance(value, Tensor) and value.shape == weight.shape
                else (value.clone() if isinstance(value, Tensor) else value)
                for key, value in state.items()
            }

    def check_place(self, weight: Tensor) -> None:
        kernel = next(iter(self.kernels.values()))
        if (weight.device, weight.dtype) != (kernel.device, kernel.dtype):
            raise RuntimeError(
                f"the weight of {self.name!r} was moved or converted since attach: move the model first, then make and "
                "attach an optimizer"
            )

    def was_written(self, weight: Tensor) -> bool:
        return self._seen != _version(weight)

    def differs_from(self, weight: Tensor) -> Tensor:
        """Whether the weight is not what the kernels make, as a tensor."""
        return (weight.detach() != csla.equivalent_kernel(self.block, self._constants, self.kernels)).any()

    def follow_(self, weight: Tensor) -> None:
        followed = csla.following(self.block, self._constants, self.kernels, weight, self.name)
        for branch, kernel in self.kernels.items():
            kernel.copy_(followed[branch])
        self._seen = _version(weight)

    def split_grad(self, grad: Tensor | None) -> None:
        for branch, placement in self.block.branches.items():
            kernel = self.kernels[branch]
            if grad is None:
                kernel.grad = None
                continue
            # Of the kernel's own strides: fused CPU optimizers take others without an error, and compute garbage.
            kernel.grad = torch.empty_like(kernel)
            scale = self._constants[branch]
            folded = scale if scale.ndim == 0 else placement.fold(scale)
            torch.mul(placement.view(grad), folded, out=placement.fold(kernel.grad))

    def forget_grads(self) -> None:
        for kernel in self.kernels.values():
            kernel.grad = None

    def merge_into_(self, weight: Tensor) -> None:
        csla.merge_into_(weight, self.block, self._constants, self.kernels)
        self._seen = _version(weight)

    def saved(self) -> dict[str, Any]:
        return {
            branch: {"kernel": kernel.detach(), "state": self.states.get(kernel, {})}
            for branch, kernel in self.kernels.items()
        }

    def load(self, saved: Mapping[str, Any], on_device: bool) -> None:
        for branch, kernel in self.kernels.items():
            kernel.copy_(saved[branch]["kernel"])
            state = saved[branch]["state"]
            self.states[kernel] = {key: _as_state(key, value, kernel, on_device) for key, value in state.items()}
            if not state:
                del self.states[kernel]
        self._seen = None  # the weight may have been loaded before or after


def _as_state(key: str, value: Any, kernel: Tensor, on_device: bool) -> Any:
    """As torch loads a state: of the parameter's device and precision, but for a step count kept on the host."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.to(kernel.device, torch.float32) if on_device else value
    return value.to(kernel.device, kernel.dtype if value.is_floating_point() and value.ndim else value.dtype)


def _version(weight: Tensor) -> tuple[int, int]:
    return weight._version, weight.data_ptr()
