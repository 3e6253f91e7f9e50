"""The cost of an optimizer step with and without repopt.

Both optimizers step the same parameters in turn, each time on a fresh copy of the same gradients, and the medians are
compared: what the machine does beside it falls on both.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.attachment import attach
from repopt.plans import Plan

Implementation = Literal["fused", "foreach", "plain"]


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one step takes.

    Attributes:
        implementation: of torch's optimizer, and `graph` where the step was replayed as a CUDA graph.
        repopt: whether the optimizer was attached.
        milliseconds: median of the repeats.
        ratio: to the stock optimizer of the same implementation.
        state_bytes: the optimizer's own state.
        repopt_bytes: what repopt keeps beside it.
        peak_bytes: what a step allocated on top, at the most; None where the device does not count.
    """

    implementation: str
    repopt: bool
    milliseconds: float
    ratio: float
    state_bytes: int
    repopt_bytes: int
    peak_bytes: int | None


def measure_step(
    plan: Plan, *, implementation: Implementation = "fused", graph: bool = False, repeats: int = 20, seed: int = 0
) -> tuple[StepCost, StepCost]:
    """Measures SGD with nesterov momentum and L2 on a plan's operators, stock and attached.

    Args:
        plan: a plan with scales; its operators' weights are stepped, on the device where they are.
        implementation: torch's.
        graph: replay the step as a CUDA graph.
        repeats: timed steps of each.
        seed: of the gradients.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    params = [module.weight for module in plan.modules().values()]
    if graph and params[0].device.type != "cuda":
        raise ValueError(f"only a step on CUDA can be replayed as a graph, not one on {params[0].device}")
    draw = torch.Generator(params[0].device).manual_seed(seed)
    noise = [1e-3 * torch.randn(param.shape, generator=draw, device=param.device).to(param) for param in params]
    for param, values in zip(params, noise, strict=True):
        param.grad = torch.empty_like(param).copy_(values)
    stock, attached = _optimizer(params, implementation), _optimizer(params, implementation)
    handle = attach(attached, plan)
    timers = [_Timer(optimizer, params, noise, graph=graph) for optimizer in (stock, attached)]
    for _ in range(repeats):
        for timer in timers:
            timer.time_one_step()
    medians = [statistics.median(timer.milliseconds) for timer in timers]
    label = f"{implementation}, graph" if graph else implementation
    plain, ours = (
        StepCost(
            implementation=label,
            repopt=repopt,
            milliseconds=median,
            ratio=median / medians[0],
            state_bytes=_state_bytes(timer.optimizer),
            repopt_bytes=handle.nbytes if repopt else 0,
            peak_bytes=timer.peak_bytes,
        )
        for repopt, median, timer in zip((False, True), medians, timers, strict=True)
    )
    return plain, ours


class _Timer:
    """Times steps of one optimizer, each after the gradients were filled anew."""

    def __init__(self, optimizer: Optimizer, params: list[Tensor], noise: list[Tensor], *, graph: bool) -> None:
        self.optimizer = optimizer
        self.milliseconds: list[float] = []
        self._params, self._noise = params, noise
        self._cuda = params[0].device.type == "cuda"
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


def _optimizer(params: list[Tensor], implementation: Implementation) -> Optimizer:
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "plain": {"foreach": False}}
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=4e-5, **options[implementation])


def _state_bytes(optimizer: Optimizer) -> int:
    return sum(
        value.nbytes for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    )
