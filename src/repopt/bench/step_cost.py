"""The cost of an optimizer step with and without repopt.

The optimizers take turns, each on its own copy of the same parameters and gradients, and their medians are compared:
what else the machine does slows all of them alike.
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

from repopt.optim import AdamW
from repopt.optim.attachment import attach
from repopt.plans.planning import Plan

Rule = Literal["sgd", "adamw"]
Implementation = Literal["fused", "foreach", "plain"]

_WAYS = {"sgd": ("stock", "grad"), "adamw": ("stock", "branch", "closed")}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "plain": {"foreach": False},
}


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one step takes.

    Attributes:
        rule: `sgd` (nesterov momentum and L2) or `adamw`.
        way: `stock`, or how repopt makes it train the imagined blocks: `grad`, `branch`, `closed`.
        implementation: of torch's optimizer, and `graph` where the step was replayed as a CUDA graph.
        milliseconds: median of the repeats.
        ratio: to the stock optimizer of the same implementation.
        state_bytes: the optimizer's state.
        repopt_bytes: what repopt keeps beside it: multipliers, scales, or the branches' kernels.
        peak_bytes: the most that a step allocated on top; None on a CPU.
    """

    rule: str
    way: str
    implementation: str
    milliseconds: float
    ratio: float
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
        rule: SGD is compared with the grad route, AdamW with the closed form and with the branch route.
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
            timer.time_one_step()
    stock = statistics.median(timers["stock"].milliseconds)
    return [
        StepCost(
            rule=rule,
            way=way,
            implementation=f"{implementation}, graph" if graph else implementation,
            milliseconds=statistics.median(timer.milliseconds),
            ratio=statistics.median(timer.milliseconds) / stock,
            state_bytes=_state_bytes(timer.optimizer),
            repopt_bytes=timer.kept_bytes(),
            peak_bytes=timer.peak_bytes,
        )
        for way, timer in timers.items()
    ]


def _make(way: str, rule: Rule, plan: Plan, implementation: str, graph: bool) -> tuple[Optimizer, Callable[[], int]]:
    """An optimizer, and what repopt keeps beside it."""
    params = [module.weight for module in plan.modules().values()]
    if way == "closed":
        foreach = None if implementation == "fused" else implementation == "foreach"
        closed = AdamW(params, plan, lr=1e-3, foreach=foreach, capturable=graph)
        return closed, lambda: closed.nbytes
    options: dict[str, Any] = dict(_IMPLEMENTATIONS[implementation])
    if rule == "sgd":
        optimizer: Optimizer = torch.optim.SGD(
            params, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=4e-5, **options
        )
    else:
        optimizer = torch.optim.AdamW(params, lr=1e-3, capturable=graph, **options)
    if way == "stock":
        return optimizer, lambda: 0
    handle = attach(optimizer, plan)
    return optimizer, lambda: handle.nbytes


class _Timer:
    """Times steps of one optimizer, each after the gradients were filled anew."""

    def __init__(
        self, plan: Plan, optimizer: Optimizer, kept_bytes: Callable[[], int], *, graph: bool, seed: int
    ) -> None:
        self.optimizer = optimizer
        self.kept_bytes = kept_bytes
        self.milliseconds: list[float] = []
        self._params = [module.weight for module in plan.modules().values()]
        self._cuda = self._params[0].device.type == "cuda"
        draw = torch.Generator(self._params[0].device).manual_seed(seed)
        self._noise = []
        for param in self._params:
            noise = torch.randn(param.shape, generator=draw, device=param.device)
            self._noise.append(torch.empty_like(param, requires_grad=False).copy_(1e-3 * noise))
            param.grad = torch.empty_like(self._noise[-1])
        for _ in range(3):
            self._fill_grads()
            optimizer.step()
        self.peak_bytes = self._measure_peak() if self._cuda else None
        self._step: Callable[[], object] = self._captured() if graph else optimizer.step

    def time_one_step(self) -> None:
        self._fill_grads()
        self._synchronize()
        start = time.perf_counter()
        self._step()
        self._synchronize()
        self.milliseconds.append(1e3 * (time.perf_counter() - start))

    def _fill_grads(self) -> None:
        for param, values in zip(self._params, self._noise, strict=True):
            assert param.grad is not None
            param.grad.copy_(values)

    def _synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def _measure_peak(self) -> int:
        self._fill_grads()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.optimizer.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def _captured(self) -> Callable[[], object]:
        graph = torch.cuda.CUDAGraph()
        self._fill_grads()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self.optimizer.step()
        return graph.replay


def _state_bytes(optimizer: Optimizer) -> int:
    """The saved state, without the branches' kernels, which are not state."""
    saved = optimizer.state_dict()
    blocks = [block for group in saved["param_groups"] for block in group.get("repopt_branches", {}).values()]
    return _nbytes(saved["state"]) + sum(_nbytes(branch["state"]) for block in blocks for branch in block.values())


def _nbytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_nbytes(each) for each in value.values())
    return value.nbytes if isinstance(value, Tensor) else 0
