"""verify(): the real block and the re-parameterized operator, trained side by side.

    CSLA block + regular optimizer = single operator + optimizer with GR                                (Proposition)

Both start from the same kernels, see the same data in float64 and are stepped by the same rule. What is reported is the
worst relative difference, over all steps, of their outputs and of their equivalent kernels.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from repopt.algebra.csla import check_has_values
from repopt.algebra.operators import Operator
from repopt.optim import RepOptimizer
from repopt.optim.attachment import Route, attach
from repopt.optim.clipping import clip_grad_norm_
from repopt.plans.copying import copied
from repopt.plans.planning import Plan, check_plan
from repopt.plans.scales import Scales
from repopt.plans.wording import counted, first_line
from repopt.surgery.conversion import csla_blocks, csla_model
from repopt.verification.waiting import counting

_ROUNDING = 1e-11  # relative, of one operator; those of `repopt verify` read 1e-14
_MOVED = 1000  # times the tolerance: a kernel that moved less is as good as at rest

OptimizerFactory = Callable[..., Optimizer]  # of parameters; of a plan too, where it takes one
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class BlockDifference:
    """How far two trainings were apart, relative to the largest entry, at the worst of all steps.

    Attributes:
        operator: the operator's name.
        branches: its branches.
        outputs: of its outputs, or of the whole model's where the model was trained as a whole.
        kernels: of its equivalent kernel.
        moved: how far training moved the kernel from its start; the equality says nothing if nothing moved.
    """

    operator: str
    branches: str
    outputs: float
    kernels: float
    moved: float

    @property
    def worst(self) -> float:
        return max(self.outputs, self.kernels)


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """What `verify` found.

    Attributes:
        rule: the optimizer.
        route: how it steps the blocks.
        exact: whether the route claims to be exact.
        steps: of training.
        differences: one for each block.
        depth: how many operators were trained as one model.
    """

    rule: str
    route: str
    exact: bool
    steps: int
    differences: tuple[BlockDifference, ...]
    depth: int = 1

    @property
    def worst(self) -> float:
        """The largest relative difference of all."""
        return max(difference.worst for difference in self.differences)

    @property
    def tolerance(self) -> float:
        """The largest difference that is taken for rounding, which adds up over the operators of a model."""
        return _ROUNDING * self.depth

    @property
    def passed(self) -> bool:
        """Whether the trainings stayed equal and moved every kernel, since the equality says nothing of one at rest."""
        return self.worst <= self.tolerance and not any(map(self._is_at_rest, self.differences))

    def _is_at_rest(self, difference: BlockDifference) -> bool:
        return not difference.moved > _MOVED * self.tolerance

    def _headline(self) -> str:
        claim, verdict = "exact" if self.exact else "inexact", "passed" if self.passed else "not passed"
        kind = f"{self.rule}, {self.route} route, {claim}, {counted(self.steps, 'step')}"
        resting = sum(map(self._is_at_rest, self.differences))
        rest = f"; {counted(resting, 'operator')} did not move, which shows nothing" if resting else ""
        return f"{kind}: {verdict}, worst {self.worst:.1e} (up to {self.tolerance:.0e} is rounding){rest}"

    def __repr__(self) -> str:
        return f"Report({self._headline()})"

    def __str__(self) -> str:
        width = max(len(difference.operator) for difference in self.differences)
        lines = [
            f"{each.operator:{width}}  outputs {each.outputs:.1e}  kernels {each.kernels:.1e}  {each.branches}"
            f"{'  (did not move)' if self._is_at_rest(each) else ''}"
            for each in self.differences
        ]
        return "\n".join([self._headline(), *lines])


def verify(
    net: nn.Module,
    plan: Plan,
    optimizer: OptimizerFactory,
    steps: int = 50,
    *,
    reference: OptimizerFactory | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
    route: Route = "auto",
    allow_inexact: bool = False,
    max_norm: float | None = None,
    seed: int = 0,
) -> Report:
    """Trains the imagined blocks for real beside the re-parameterized operators; the net itself is left alone.

    Args:
        net: the plain model.
        plan: its plan, with scales.
        optimizer: makes the optimizer from parameters, `lambda params: torch.optim.SGD(params, lr=0.1)`. One of
            repopt.optim takes a plan as well, `lambda params, plan: repopt.optim.AdamW(params, plan)`, and wants the
            stock optimizer as `reference`.
        steps: training steps.
        reference: makes the real block's optimizer; `optimizer` unless given.
        inputs: a batch, or several taken in turn, to train the model as a whole; without them each operator is trained
            alone on random data.
        route: as for `attach`.
        allow_inexact: as for `attach`.
        max_norm: clip the gradients to this norm before each step, on either side by its own `clip_grad_norm_`.
        seed: of the initial kernels and of the random data.

    Returns:
        A report with `.passed`, and `.worst` for the figure. Where a whole model is trained, rounding grows from step
        to step, and fast behind norms over a few values; a larger batch or fewer steps tell it from an error.

    Raises:
        RuntimeError: the reference's outputs are not finite, so there is nothing to compare.
    """
    check_plan(plan)
    for factory in (optimizer, *(() if reference is None else (reference,))):
        _check_factory(factory)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps!r}")
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")
    setting = _Setting(
        optimizer=optimizer,
        reference=reference,
        steps=steps,
        route=route,
        allow_inexact=allow_inexact,
        max_norm=max_norm,
        seed=seed,
    )
    modules = plan.on(net).modules()
    for name, module in modules.items():
        check_has_values(module.weight, name)
    with counting("verify, steps", steps * (len(modules) if inputs is None else 1)) as advance:
        if inputs is not None:
            return _train_both(net, plan, _given(inputs), F.mse_loss, setting, advance)
        reports = {}
        for name, module in modules.items():
            random = _random_inputs(plan.blocks[name].operator, seed)
            reports[name] = _train_both(module, _alone(plan, name, module), random, _position_loss, setting, advance)
    named = [replace(report.differences[0], operator=name) for name, report in reports.items()]
    return replace(next(iter(reports.values())), differences=tuple(named))


@dataclass(frozen=True, kw_only=True)
class _Setting:
    optimizer: OptimizerFactory
    reference: OptimizerFactory | None
    steps: int
    route: Route
    allow_inexact: bool
    max_norm: float | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """The plain model and its twin of real blocks, each with its optimizer; what they are trained to is drawn."""

    plain: nn.Module
    plan: Plan
    ours: Optimizer
    twin: nn.Module
    theirs: Optimizer
    route: str
    exact: bool
    draw: torch.Generator

    def kernels_apart(self) -> dict[str, float]:
        modules = self.plan.modules()
        return {name: _relative(modules[name].weight, block.weight) for name, block in csla_blocks(self.twin).items()}


def _pair(net: nn.Module, plan: Plan, setting: _Setting) -> _Pair:
    draw = torch.Generator().manual_seed(setting.seed)
    plain = copied(net).double()
    plan = plan.on(plain)
    for module in plan.modules().values():
        module.weight.requires_grad_(True)
    kernels = plan.init_(generator=draw)
    twin = csla_model(plain, plan, kernels)
    ours = _made(setting.optimizer, plain.parameters(), plan)
    closed = isinstance(ours, RepOptimizer)
    if closed and setting.reference is None:
        raise ValueError(
            f"repopt.optim.{type(ours).__name__} cannot train the real block: give the stock optimizer as reference"
        )
    theirs = _made(setting.reference or setting.optimizer, twin.parameters(), plan)
    handle = None if closed else attach(ours, plan, setting.route, setting.allow_inexact, kernels)
    route, exact = ("closed", True) if handle is None else (handle.route, handle.exact)
    return _Pair(plain=plain, plan=plan, ours=ours, twin=twin, theirs=theirs, route=route, exact=exact, draw=draw)


def _train_both(
    net: nn.Module,
    plan: Plan,
    inputs: Iterator[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    setting: _Setting,
    advance: Callable[[], None],
) -> Report:
    pair = _pair(net, plan, setting)
    start = {name: module.weight.detach().clone() for name, module in pair.plan.modules().items()}
    outputs, kernels = 0.0, dict.fromkeys(plan.operators, 0.0)
    for step, batch in zip(range(setting.steps), inputs, strict=False):
        outputs = max(outputs, _step_both(pair, batch, step, loss, setting.max_norm))
        kernels = {name: max(kernels[name], apart) for name, apart in pair.kernels_apart().items()}
        advance()
    differences = tuple(
        BlockDifference(
            operator=name,
            branches=", ".join(plan.blocks[name].branches),
            outputs=outputs,
            kernels=kernels[name],
            moved=_relative(module.weight, start[name]),
        )
        for name, module in pair.plan.modules().items()
    )
    return Report(
        rule=type(pair.ours).__name__,
        route=pair.route,
        exact=pair.exact,
        steps=setting.steps,
        differences=differences,
        depth=len(differences),
    )


def _step_both(
    pair: _Pair, batch: Tensor, step: int, loss: Callable[[Tensor, Tensor], Tensor], max_norm: float | None
) -> float:
    """Trains both on a batch; returns how far apart their outputs were before."""
    device = next(pair.plain.parameters()).device
    x = batch.to(device, torch.float64 if batch.is_floating_point() else batch.dtype)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        y, expected = (_seeded(model, x, step) for model in (pair.plain, pair.twin))
    if not expected.isfinite().all():
        raise RuntimeError(f"the real block's training is no longer finite at step {step}: use a smaller lr")
    target = torch.randn(expected.shape, generator=pair.draw, dtype=torch.float64).to(device)
    for output, optimizer in ((y, pair.ours), (expected, pair.theirs)):
        optimizer.zero_grad()
        loss(output, target).backward()  # type: ignore[no-untyped-call]
    if max_norm is not None:
        clip_grad_norm_(pair.plan, max_norm)
        nn.utils.clip_grad_norm_(pair.twin.parameters(), max_norm)
    pair.ours.step()
    pair.theirs.step()
    return _relative(y, expected)


def _check_factory(factory: object) -> None:
    if not callable(factory) or isinstance(factory, Optimizer) or not inspect.signature(factory).parameters:
        raise TypeError(
            "optimizer, and reference, must make an optimizer from parameters: lambda params: torch.optim.SGD(params)"
        )


def _made(factory: OptimizerFactory, params: Iterable[nn.Parameter], plan: Plan) -> Optimizer:
    """An optimizer for these parameters; a factory that wants the plan gets the one for the copy that is trained."""
    taken = inspect.signature(factory).parameters
    needed = [each for each in taken.values() if each.default is each.empty and each.kind in _BY_POSITION]
    if "plan" in taken:
        made = factory(params, plan=plan)
    else:
        made = factory(params, plan) if len(needed) > 1 else factory(params)
    if not isinstance(made, Optimizer):
        raise TypeError(f"optimizer, and reference, must return an optimizer, not a {type(made).__name__}")
    return made


def _alone(plan: Plan, name: str, module: nn.Module) -> Plan:
    """The plan of one operator as a model of its own."""
    scales = None if plan.scales is None else Scales({"": plan.scales.get(name, {})})
    return Plan(model=module, blocks={"": plan.blocks[name]}, scales=scales)


def _given(inputs: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    batches = [inputs] if isinstance(inputs, Tensor) else list(inputs) if isinstance(inputs, Iterable) else [inputs]
    if not all(isinstance(batch, Tensor) for batch in batches):
        kinds = ", ".join(dict.fromkeys(type(batch).__name__ for batch in batches))
        raise TypeError(
            f"inputs must be a tensor or several, a batch each, not {kinds}: leave them out to check each operator on "
            "random data, as for a model of several inputs"
        )
    if not batches:
        raise ValueError("inputs holds no batch: give a tensor or several, or leave it out for random data")
    return cycle(batches)


def _random_inputs(operator: Operator, seed: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(seed + 1)
    sizes = [
        max(dilation * (taps - 1) + 1, before + after + 1) + 3
        for taps, dilation, (before, after) in zip(
            operator.kernel_size, operator.dilation, operator.padding, strict=True
        )
    ]
    fan_in = math.prod(operator.kernel_shape[1:])
    while True:
        # Divided so that the outputs are of order one, and the same lr suits operators of every size.
        yield torch.randn(4, operator.in_channels, *sizes, generator=draw, dtype=torch.float64) / math.sqrt(fan_in)


def _position_loss(y: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, summed over channels and averaged over the rest."""
    return (y - target).square().sum() * (y.shape[1] / y.numel() / 2)


def _seeded(model: nn.Module, x: Tensor, step: int) -> Tensor:
    torch.manual_seed(step)  # so that dropout draws alike in both
    try:
        y = model(x.clone())  # which it may change in place
    except Exception as error:
        shape = tuple(x.shape)
        raise RuntimeError(f"the model cannot take inputs of shape {shape}: {first_line(error)}") from error
    if not isinstance(y, Tensor):
        raise TypeError(f"verify compares models whose output is one tensor, not {type(y).__name__}")
    return y


def _relative(value: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest entry; infinite where anything is not finite."""
    value, expected = value.detach(), expected.detach()
    difference, size = float((value - expected).abs().max()), float(expected.abs().max())
    if not math.isfinite(difference) or not math.isfinite(size):
        return math.inf
    return difference / size if size else (math.inf if difference else 0.0)
