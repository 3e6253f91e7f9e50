"""The cost of an optimizer step with and without repopt.

The optimizers take turns, each on its own copy of the same parameters and gradients, and their medians are compared:
what else the machine does slows all of them alike. On a GPU a step is timed twice. In a training loop it comes while
the device is still busy with the backward pass, which has filled the cache with other things: this is what it costs.
Alone, on an idle device, it shows what the host does before the launch.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.optim import SGD, Adam, AdamW, Lion, RepOptimizer
from repopt.optim.attachment import attach_as_is
from repopt.plans.planning import Plan
from repopt.plans.stamps import SAVED

Rule = Literal["sgd", "adamw", "adam", "lion"]
Implementation = Literal["fused", "foreach", "plain"]

# The first is what the others are compared with. torch has no Lion: there it is ours without a multiplier.
_WAYS = {
    "sgd": ("stock", "grad", "closed"),
    "adamw": ("stock", "branch", "closed"),
    "adam": ("stock", "closed"),
    "lion": ("plain", "closed"),
}
_SGD: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9, "nesterov": True, "weight_decay": 4e-5}
_BACKWARD = 1 << 29  # bytes that are written before a queued step, several times what a cache holds
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False},
}


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one step takes.

    Attributes:
        rule: `sgd` (nesterov momentum and L2), `adamw`, `adam` or `lion`.
        way: `stock`, or how repopt makes it train the imagined blocks: `grad` (an attached SGD), `branch`, `closed`;
            `plain` is a closed form without a multiplier.
        implementation: of torch's optimizer, and `graph` where the step was replayed as a CUDA graph.
        milliseconds: of a step that begins and ends with an idle device, median of the repeats.
        ratio: to the stock optimizer of the same implementation.
        queued_milliseconds: of a step behind other work, with nothing of its own in the cache.
        queued_ratio: to the stock optimizer of the same implementation.
        state_bytes: the optimizer's state.
        repopt_bytes: what repopt keeps beside it: multipliers, scales, or the branches' kernels.
        peak_bytes: the most that a step allocated on top; None on a CPU.
    """

    rule: str
    way: str
    implementation: str
    milliseconds: float
    ratio: float
    queued_milliseconds: float
    queued_ratio: float
    state_bytes: int
    repopt_bytes: int
    peak_bytes: int | None


def measure_step(
    plan: Plan,
    *,
    rule: Rule = "sgd",
    implementation: Implementation = "fused",
    graph: bool = False,
    repeats: int = 20,
    seed: int = 0,
) -> list[StepCost]:
    """Measures a step on a plan's operators, stock first.

    Args:
        plan: a plan with scales; its operators' weights are stepped, on the device where they are.
        rule: each is compared with its closed form, SGD also attached, AdamW also on the branch route.
        implementation: torch's; a closed form has none that is fused.
        graph: replay the step as a CUDA graph.
        repeats: timed steps of each.
        seed: of the gradients.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    device = next(iter(plan.modules().values())).weight.device
    if graph and device.type != "cuda":
        raise ValueError(f"only a step on CUDA can be replayed as a graph, not one on {device}")
    timers = {}
    for way in _WAYS[rule]:
        own = plan.on(copy.deepcopy(plan.model))
        timers[way] = _Timer(own, *_make(way, rule, own, implementation, graph), graph=graph, seed=seed)
    for _ in range(repeats):
        for timer in timers.values():
            timer.time_alone()
            timer.time_queued()
    stock = statistics.median(timers[_WAYS[rule][0]].milliseconds)
    queued = statistics.median(timers[_WAYS[rule][0]].queued)
    return [
        StepCost(
            rule=rule,
            way=way,
            implementation=f"{implementation}, graph" if graph else implementation,
            milliseconds=statistics.median(timer.milliseconds),
            ratio=statistics.median(timer.milliseconds) / stock,
            queued_milliseconds=statistics.median(timer.queued),
            queued_ratio=statistics.median(timer.queued) / queued,
            state_bytes=_state_bytes(timer.optimizer),
            repopt_bytes=timer.kept_bytes(),
            peak_bytes=timer.peak_bytes,
        )
        for way, timer in timers.items()
    ]


def _make(way: str, rule: Rule, plan: Plan, implementation: str, graph: bool) -> tuple[Optimizer, Callable[[], int]]:
    """An optimizer, and what repopt keeps beside it."""
    params = [module.weight for module in plan.modules().values()]
    if way in {"closed", "plain"}:
        closed = _closed(rule, params, plan if way == "closed" else Plan.empty(plan.model))
        return closed, lambda: closed.nbytes
    options: dict[str, Any] = dict(_IMPLEMENTATIONS[implementation])
    if rule == "sgd":
        optimizer: Optimizer = torch.optim.SGD(params, **_SGD, **options)
    else:
        stock = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[rule]
        optimizer = stock(params, lr=1e-3, capturable=graph, **options)
    if way == "stock":
        return optimizer, lambda: 0
    handle = attach_as_is(optimizer, plan)
    return optimizer, lambda: handle.nbytes


def _closed(rule: Rule, params: list[Tensor], plan: Plan) -> RepOptimizer:
    if rule == "sgd":
        return SGD(params, plan, **_SGD)
    kinds: dict[str, Callable[..., RepOptimizer]] = {"adamw": AdamW, "adam": Adam, "lion": Lion}
    return kinds[rule](params, plan, lr=1e-4)


class _Timer:
    """Times steps of one optimizer on gradients that stay the same."""

    def __init__(
        self, plan: Plan, optimizer: Optimizer, kept_bytes: Callable[[], int], *, graph: bool, seed: int
    ) -> None:
        self.optimizer = optimizer
        self.kept_bytes = kept_bytes
        self.milliseconds: list[float] = []
        self.queued: list[float] = []
        self._params = [module.weight for module in plan.modules().values()]
        self._cuda = self._params[0].device.type == "cuda"
        draw = torch.Generator(self._params[0].device).manual_seed(seed)
        for param in self._params:
            noise = torch.randn(param.shape, generator=draw, device=param.device)
            param.grad = torch.empty_like(param, requires_grad=False).copy_(1e-3 * noise)
        for _ in range(3):
            optimizer.step()
        self.peak_bytes = self._measure_peak() if self._cuda else None
        self._step: Callable[[], object] = self._captured() if graph else optimizer.step

    def time_alone(self) -> None:
        self._synchronize()
        start = time.perf_counter()
        self._step()
        self._synchronize()
        self.milliseconds.append(1e3 * (time.perf_counter() - start))

    def time_queued(self) -> None:
        if not self._cuda:  # no queue
            self.queued.append(self.milliseconds[-1])
            return
        backward = torch.empty(_BACKWARD, dtype=torch.uint8, device=self._params[0].device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(5):  # a millisecond or so, in which the host gets ahead
            backward.zero_()
        start.record()
        self._step()
        end.record()
        end.synchronize()
        self.queued.append(start.elapsed_time(end))

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def _measure_peak(self) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.optimizer.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def _captured(self) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.optimizer.step()
        return graph.replay


def _state_bytes(optimizer: Optimizer) -> int:
    """The saved state, without the branches' kernels, which are not state."""
    saved = optimizer.state_dict()
    blocks = [block for group in saved["param_groups"] for block in group.get(SAVED, {}).values()]
    return _nbytes(saved["state"]) + sum(_nbytes(branch["state"]) for block in blocks for branch in block.values())


def _nbytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_nbytes(each) for each in value.values())
    return value.nbytes if isinstance(value, Tensor) else 0
