"""SGD in closed form: linear in the gradient, so one multiplier stands for all branches.

    b   <-  momentum * b  +  (1 - dampening) * (M * g  +  wd * W')
    W'  <-  W'  -  lr * b                             nesterov: lr * (M * g  +  wd * W'  +  momentum * b)

The buffer is the sum of the branches' buffers, each times its scale and embedded: one of W' alone suffices.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from repopt.algebra.multiplier import Multiplier
from repopt.algebra.sharding import is_sharded
from repopt.optim.closed_form import ClosedForm, Options, Slot
from repopt.optim.kernels.launches import takes
from repopt.optim.one_pass import Update
from repopt.optim.product import product
from repopt.optim.rep_optimizer import RepOptimizer
from repopt.plans.planning import Plan

_BUFFER = "momentum_buffer"
_SMALL = 1 << 14  # elements
_OPTIONS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


class ClosedSGD(ClosedForm):
    """SGD's step on the imagined blocks; its options and state are those of `torch.optim.SGD`."""

    rule = "sgd"
    route = "grad"
    degree = 1

    def keys(self, options: Options) -> tuple[str, ...]:
        return (_BUFFER,) if options["momentum"] else ()

    def new_state(self, key: str, param: Tensor, options: Options) -> Tensor:
        # The first step ignores the dampening. A buffer that is not a number has not seen it yet, on the device too,
        # where only GradScaler's flag says whether a step was taken.
        return torch.full_like(param, torch.nan, memory_format=torch.preserve_format)

    def flags(self, options: Options) -> dict[str, bool]:
        momentum = bool(options["momentum"])
        return {
            "has_momentum": momentum,
            "nesterov": momentum and options["nesterov"],
        }

    def numbers(self, options: Options) -> tuple[float | Tensor, ...]:
        sign = -1.0 if options["maximize"] else 1.0
        return options["lr"], options["weight_decay"], sign, options["momentum"], 1 - options["dampening"]

    def check_grad(self, param: Tensor, grad: Tensor) -> None:
        """Takes sparse gradients and complex parameters outside the plan, as torch's SGD does."""

    def update(self) -> Update:
        return _update_

    def step_slots_(self, slots: Iterable[Slot]) -> None:
        """Hands small ones that are alike to torch's SGD at once; a large one's product is used while it is cached."""
        small = []
        for slot in slots:
            if slot.param.numel() > _SMALL:
                self._step_alike_([slot])
            else:
                small.append(slot)
        self._step_alike_(small)

    def _step_alike_(self, slots: Sequence[Slot]) -> None:
        kinds: dict[tuple[int, bool, bool], list[tuple[Slot, Tensor]]] = defaultdict(list)
        for slot in slots:
            grad = product(slot.grad, slot.factors) if isinstance(slot.factors, Multiplier) else slot.grad
            fused = _takes_fused(slot.param, [grad, *slot.states]) and not isinstance(slot.options["lr"], Tensor)
            kinds[id(slot.options), _is_first(slot), fused].append((slot, grad))
        for (_, is_first, fused), found in kinds.items():
            options = found[0][0].options
            buffers: list[Tensor | None] = [None if is_first else next(iter(slot.states), None) for slot, _ in found]
            sgd(
                [slot.param for slot, _ in found],
                [grad for _, grad in found],
                buffers,
                has_sparse_grad=any(grad.is_sparse for _, grad in found),
                foreach=False,
                fused=fused,
                **{key: options[key] for key in _OPTIONS},
            )
            for (slot, _), buffer in zip(found, buffers, strict=True):
                if is_first and buffer is not None:
                    slot.states[0].copy_(buffer.to_dense() if buffer.is_sparse else buffer)


def _is_first(slot: Slot) -> bool:
    """Whether the buffer has not seen a step."""
    if not slot.states or not slot.states[0].numel():
        return False
    return bool(slot.states[0][(0,) * slot.states[0].ndim].isnan())


def forget_unstepped_(optimizer: Optimizer) -> None:
    """Drops buffers that have not seen a step, as where GradScaler skipped the first: torch's SGD has none there.

    Sharded ones stay: a rank cannot tell alone, and all ranks have to save the same states.
    """
    for state in optimizer.state.values():
        buffer = state.get(_BUFFER)
        if buffer is not None and not is_sharded(buffer) and buffer.numel() and buffer.isnan().all():
            del state[_BUFFER]


def _update_(
    weight: Tensor,
    grad: Tensor,
    states: Sequence[Tensor],
    factors: Sequence[Tensor],
    numbers: Sequence[Tensor],
    *,
    has_momentum: bool,
    nesterov: bool,
) -> None:
    """The step of one pass, as the kernel takes it."""
    lr, decay, sign, momentum, kept = numbers
    grad = sign * grad * sum(factors) + decay * weight
    if has_momentum:
        buffer = torch.where(states[0] == states[0], momentum * states[0] + kept * grad, grad)  # NaN: no step yet
        states[0].copy_(buffer)
        grad = grad + momentum * buffer if nesterov else buffer
    weight.sub_(lr * grad)


def _takes_fused(param: Tensor, others: list[Tensor]) -> bool:
    """Whether torch's fused SGD is right: it takes other layouts, and on a CPU half precision, and computes garbage."""
    dense = not any(each.is_sparse for each in others) and takes(param, others)
    return dense and param.dtype in {torch.float32, torch.float64} and param.device.type in {"cpu", "cuda"}


class SGD(RepOptimizer):
    """SGD on the imagined blocks; equals `torch.optim.SGD` on the real ones.

    `attach(torch.optim.SGD(...), plan)` takes the same step, and each loads the other's state.

    Args:
        params: parameters or param groups.
        plan: a plan with scales.
        lr: learning rate, a number or a tensor.
        momentum: momentum factor.
        dampening: dampening of the momentum.
        weight_decay: L2, applied to W' once.
        nesterov: use Nesterov momentum.
        maximize: maximize the loss instead of minimizing it.
        max_norm: clip the gradients to this norm of the imagined blocks, inside the step.

    Example:
        >>> plan.init_()
        >>> optimizer = repopt.optim.SGD(net.parameters(), plan, lr=0.1, momentum=0.9, nesterov=True)
    """

    def __init__(
        self,
        params: ParamsT,
        plan: Plan,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        max_norm: float | None = None,
    ) -> None:
        if nesterov and (not momentum > 0 or dampening):
            raise ValueError("nesterov needs a momentum above 0 and a dampening of 0")
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, plan, options, ClosedSGD, max_norm)
        self.register_state_dict_pre_hook(forget_unstepped_)


class SGDRoute:
    """The hook by which an attached `torch.optim.SGD` takes the closed step.

    Its `step` runs on a stand-in that shares everything with it but the class, and so the way that a step begins.
    """

    name = "grad"

    def __init__(self, optimizer: Optimizer, plan: Plan, max_norm: float | None = None) -> None:
        self._form = ClosedSGD(plan, max_norm)
        self._stand_in = _StandIn(self._form)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_pre_hook(forget_unstepped_),
        ]

    @property
    def nbytes(self) -> int:
        return self._form.nbytes

    def detach(self, optimizer: Optimizer) -> None:
        for hook in self._hooks:
            hook.remove()
        forget_unstepped_(optimizer)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._stand_in.__dict__ = optimizer.__dict__
        return (self._stand_in, *args[1:]), kwargs


class _StandIn:
    """Takes the whole step where torch's would collect its first group, and leaves it nothing to do.

    It is no `Optimizer`: of one, torch.compile calls `_init_group` while it compiles, and not at each step.
    """

    __slots__ = ("__dict__", "form")

    def __init__(self, form: ClosedSGD) -> None:
        self.form = form

    def _init_group(self, group: Options, params: list[Tensor], grads: list[Tensor], buffers: list[Any]) -> bool:
        if group is self.__dict__["param_groups"][0]:
            self.form(cast(Optimizer, self))
        return False
