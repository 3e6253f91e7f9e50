"""Closed forms: a step that is the imagined blocks', taken on the plain weights, with a stock optimizer's state.

`.grad` is only read. On a GPU with Triton one launch steps all parameters of a device and dtype; elsewhere they are
stepped one after the other, on a CPU in pieces that fit its cache. A parameter outside the plan has the factor 1.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from repopt.algebra.branches import Entries, entries_of
from repopt.algebra.multiplier import Multiplier, grad_mult
from repopt.algebra.sharding import is_sharded, local_rows
from repopt.device import takes_kernels
from repopt.optim.clipping import check_max_norm, clip_coefficient
from repopt.optim.kernels.launches import Launch, Row, address_of, entries_of_block, has_channels_last, takes
from repopt.optim.one_pass import OnePass, Update, is_worth_it, one_pass
from repopt.optim.planned_weights import PlannedWeights
from repopt.plans.planning import Plan
from repopt.plans.stamps import params_of

# Elements that a CPU steps at once: weight, gradient, states and scratch of so many stay in its second-level cache.
_PIECE = 1 << 16

# Tensors with fewer elements are not worth a compiled pass.
_SMALL = 1 << 12

# Steps of an optimizer that take turns, as with parameters left out of every other one, are each arranged once.
_ARRANGEMENTS = 4

Options = dict[str, Any]
Factors = Multiplier | list[Entries]


class Slot(NamedTuple):
    """What the step of one parameter, or of some rows of it, works on.

    Attributes:
        options: those of its param group.
        states: the rule's, in the order of `ClosedForm.keys`.
        factors: what multiplies it; None for a parameter outside the plan.
    """

    options: Options
    param: Tensor
    grad: Tensor
    states: tuple[Tensor, ...]
    factors: Factors | None


class ClosedForm:
    """How a rule steps the imagined blocks.

    A rule says what its state and options are, what its kernel is told, and how torch's own operations take its step.

    Attributes:
        rule: its name in the kernel.
        route: its name in the fingerprint of a state.
        degree: of the rule in the gradient, where the scales of all branches add up to one multiplier; None where each
            branch has a term of its own.
    """

    rule: str
    route: str
    degree: float | None = None

    def __init__(self, plan: Plan, max_norm: float | None = None) -> None:
        if max_norm is not None:
            check_max_norm(max_norm)
        self.plan = plan
        self._max_norm = max_norm
        self._planned = PlannedWeights(plan)
        self._arranged: list[_Arrangement] = []  # of the latest steps, the last one first
        self._captured: list[Launch] = []  # what CUDA graphs read is kept

    # what a rule is

    def check(self, options: Options) -> None:
        """Raises for options without a closed form."""

    def check_grad(self, param: Tensor, grad: Tensor) -> None:
        """Raises for a gradient that the rule does not take."""
        if grad.is_sparse or param.is_complex():
            raise TypeError(f"{self.route.removeprefix('closed-')} takes real parameters with dense gradients only")

    def keys(self, options: Options) -> tuple[str, ...]:
        """The names of a parameter's states."""
        raise NotImplementedError

    def new_state(self, key: str, param: Tensor, options: Options) -> Tensor:
        return torch.zeros_like(param, memory_format=torch.preserve_format)

    def flags(self, options: Options) -> dict[str, bool]:
        """What the kernel is compiled for; groups that differ here take several launches."""
        return {}

    def numbers(self, options: Options) -> tuple[float | Tensor, ...]:
        """What the kernel reads of a param group."""
        raise NotImplementedError

    def count_(self, rows: Sequence[Row], found_inf: Tensor | None) -> None:
        """Counts the step, where the rule does, unless it is skipped."""

    def update(self) -> Update:
        """The rule as a function that can be compiled: see `one_pass`."""
        raise NotImplementedError

    def pass_numbers(self, options: Options, states: Sequence[Tensor]) -> tuple[float, ...]:
        """What `update` reads of a param group and of a count of steps."""
        return tuple(map(float, self.numbers(options)))

    def step_(self, slot: Slot) -> None:
        """The step in torch's own operations."""
        raise NotImplementedError

    # the step

    def __call__(self, optimizer: Optimizer) -> None:
        """Steps every parameter of an optimizer that has a gradient; compiled code calls it as it is."""
        if torch.compiler.is_compiling():
            torch.compiler.disable(self._step_all_)(optimizer)  # type: ignore[no-untyped-call]
        else:
            self._step_all_(optimizer)

    def _step_all_(self, optimizer: Optimizer) -> None:
        planned = self._planned.held_by(optimizer)
        for options in optimizer.param_groups:
            self.check(options)
        params = params_of(optimizer)
        stepped, grads = params, list(map(attrgetter("grad"), params))
        try:
            strides: list[Any] = list(map(Tensor.stride, grads))
        except (TypeError, RuntimeError):  # one is None, or sparse, which has no strides
            stepped = [param for param, grad in zip(params, grads, strict=True) if grad is not None]
            grads = [param.grad for param in stepped]
            strides = [grad.is_sparse or grad.stride() for grad in grads]
        if not stepped:
            return
        fitting = (each for each in self._arranged if each.fits(optimizer, params, stepped, strides, planned))
        arranged = next(fitting, None) or _Arrangement(self, optimizer, params, stepped, strides, planned)
        if arranged not in self._arranged[:1]:
            others = (each for each in self._arranged if each is not arranged and each.is_of(optimizer, planned))
            self._arranged = [arranged, *others][:_ARRANGEMENTS]
        if arranged.sharded:
            grads = [local_rows(grad)[0] for grad in grads]
        given = vars(optimizer)  # by GradScaler, for the time of a step
        grad_scale, found_inf, clip = given.get("grad_scale"), given.get("found_inf"), None
        if self._max_norm is not None:
            found = [(row.param, grad, row.name) for row, grad in zip(arranged.rows, grads, strict=True)]
            clip = clip_coefficient(self.plan, found, self._max_norm, grad_scale)
        for launch in arranged.launches:
            self.count_(launch.rows, found_inf)
            numbers = [self.numbers(options) for options in optimizer.param_groups]
            own = grads if len(launch.rows) == len(grads) else [grads[row.place] for row in launch.rows]
            launch.run(own, numbers, grad_scale, found_inf, clip)
            if launch.is_captured and launch not in self._captured:
                self._captured.append(launch)
        if arranged.one_by_one and not (found_inf is not None and found_inf.item()):
            self.count_([row for row, _ in arranged.one_by_one], None)
            self.step_slots_(self._slots(arranged, optimizer, grads, grad_scale, clip))

    def _slots(
        self,
        arranged: "_Arrangement",
        optimizer: Optimizer,
        grads: Sequence[Tensor],
        grad_scale: Tensor | None,
        clip: Tensor | None,
    ) -> Iterator[Slot]:
        """One after the other, what no launch steps, its gradient unscaled and clipped."""
        for row, pieces in arranged.one_by_one:
            grad = grads[row.place]
            if grad_scale is not None:  # as torch's fused optimizers leave it
                grad.div_(grad_scale.to(grad.device))
            seen = grad if clip is None else grad * clip.to(grad)
            yield from self._slots_of(row, pieces, seen, optimizer.param_groups[row.group])

    def _slots_of(self, row: Row, pieces: "Pieces | OnePass", grad: Tensor, options: Options) -> Iterator[Slot]:
        """What remains to be stepped of a row; a compiled pass leaves nothing."""
        local, held = local_rows(row.param)[0], tuple(local_rows(state)[0] for state in row.states)
        if isinstance(pieces, OnePass):
            numbers = [
                torch.tensor(number, dtype=local.dtype, device="cpu") for number in self.pass_numbers(options, held)
            ]
            pieces.step_(local, grad, [state for state in held if state.ndim], numbers)
            return
        for rows, factors in pieces:
            if rows is None:
                yield Slot(options, local, grad, held, factors)
            else:
                states = tuple(state[rows] if state.ndim else state for state in held)
                yield Slot(options, local[rows], grad[rows], states, factors)

    def step_slots_(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.step_(slot)

    def factors(self, name: str, like: Tensor, rows: range | None) -> Factors:
        """What multiplies an operator's rows in torch's own operations."""
        block, constants = self.plan.blocks[name], self.plan.constants(name)
        if self.degree is None:
            sizes = {branch: constant.abs() for branch, constant in constants.items()}
            return entries_of(block.branches, sizes, like, rows)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return grad_mult(block, constants, degree=self.degree, dtype=dtype, device=like.device, rows=rows)

    @property
    def nbytes(self) -> int:
        """What is kept beside the state: what is made of the scales, and the tables of a launch."""
        return sum(arranged.nbytes for arranged in self._arranged)


Pieces = list[tuple[slice | None, Factors | None]]


class _Arrangement:
    """What steps share as long as they step the same parameters, with the same states, in the same layouts."""

    def __init__(
        self,
        form: ClosedForm,
        optimizer: Optimizer,
        params: list[Tensor],
        stepped: list[Tensor],
        strides: list[Any],
        planned: Mapping[str, Tensor],
    ) -> None:
        self._form = form
        self._planned = planned
        self._kinds = self._kinds_of(optimizer)
        names = {id(weight): name for name, weight in planned.items()}
        groups = {id(param): at for at, options in enumerate(optimizer.param_groups) for param in options["params"]}
        self.rows: list[Row] = []
        self.one_by_one: list[tuple[Row, Pieces | OnePass]] = []
        at_once: dict[Any, list[Row]] = defaultdict(list)
        others: list[Row] = []
        for index, param in enumerate(stepped):
            row, takes_launch = self._row(optimizer, index, param, groups[id(param)], names.get(id(param)))
            self.rows.append(row)
            local = local_rows(param)[0]
            if takes_launch:
                at_once[local.device, local.dtype, *self._kinds[row.group][1].items()].append(row)
            else:
                others.append(row)
        compiles = is_worth_it(sum(row.param.numel() for row in others if row.param.is_cpu))
        for row in others:
            options = optimizer.param_groups[row.group]
            compiled = _one_pass(form, row, options) if compiles and _takes_one_pass(row) else None
            self.one_by_one.append((row, compiled or _pieces(form, row)))
        self.launches = [
            Launch(rows, form.plan, rule=form.rule, degree=form.degree, flags=self._kinds[rows[0].group][1])
            for rows in at_once.values()
        ]
        self.sharded = any(is_sharded(row.param) for row in self.rows)
        self._left_out = len(params) - len(stepped)
        self._stepped = list(map(id, stepped))
        self._state = optimizer.state
        self._state_dicts = list(map(id, optimizer.state.values()))
        self._own_dicts = [optimizer.state[row.param] for row in self.rows]
        self._keys = [key for row in self.rows for key in self._kinds[row.group][0]]
        self._dict_of_key = [own for own, row in zip(self._own_dicts, self.rows, strict=True) for _ in row.states]
        self._address = address_of if self.sharded else Tensor.data_ptr
        self._states = [self._address(state) for row in self.rows for state in row.states]
        self._strides = strides  # of the gradients
        self._weights = list(map(self._address, stepped))

    def _row(self, optimizer: Optimizer, index: int, param: Tensor, group: int, name: str | None) -> tuple[Row, bool]:
        """A parameter with its states, made where there are none, and whether a launch steps it."""
        keys, options, state = self._kinds[group][0], optimizer.param_groups[group], optimizer.state[param]
        (local, rows), grad = local_rows(param), param.grad
        assert grad is not None
        self._form.check_grad(param, grad)
        for key in keys:
            if state.get(key) is None:
                state[key] = self._form.new_state(key, param, options)
            elif rows is None and state[key].shape == param.shape and state[key].stride() != param.stride():
                state[key] = torch.empty_like(param, dtype=state[key].dtype).copy_(state[key])  # laid out as the weight
        takes_launch = (
            takes_kernels(local)
            and not grad.is_sparse
            and takes(local, [local_rows(each)[0] for each in (grad, *(state[key] for key in keys))])
        )
        for key in keys:
            if takes_launch and state[key].device != local.device:  # a count of steps that was on the host
                state[key] = state[key].to(local.device)
        return Row(index, group, name, param, tuple(state[key] for key in keys), rows), takes_launch

    def is_of(self, optimizer: Optimizer, planned: Mapping[str, Tensor]) -> bool:
        """Whether the optimizer still holds these parameters and states: what it does not is let go."""
        return planned is self._planned and self._states_of(optimizer) == self._states

    def fits(
        self,
        optimizer: Optimizer,
        params: list[Tensor],
        stepped: list[Tensor],
        strides: list[Any],
        planned: Mapping[str, Tensor],
    ) -> bool:
        """Whether this was arranged for such a step; asked at every step, so it is quick."""
        return (
            planned is self._planned  # so the parameters are the same, and those of the groups
            and len(params) - len(stepped) == self._left_out
            and (stepped is params or list(map(id, stepped)) == self._stepped)
            and self._kinds_of(optimizer) == self._kinds
            and self._states_of(optimizer) == self._states
            and strides == self._strides
            and list(map(self._address, stepped)) == self._weights  # one that was moved or converted has another
        )

    def _kinds_of(self, optimizer: Optimizer) -> list[tuple[tuple[str, ...], dict[str, bool]]]:
        return [(self._form.keys(options), self._form.flags(options)) for options in optimizer.param_groups]

    def _states_of(self, optimizer: Optimizer) -> list[int] | None:
        """The addresses of the states that the optimizer holds now; None where it holds others.

        What steps share holds on to its states, so that another one is never at the same address.
        """
        if optimizer.state is not self._state or list(map(id, optimizer.state.values())) != self._state_dicts:
            return None
        try:
            return list(map(self._address, map(dict.__getitem__, self._dict_of_key, self._keys)))
        except (KeyError, TypeError, AttributeError):  # one was deleted, or is None
            return None

    @property
    def nbytes(self) -> int:
        return sum(launch.nbytes for launch in self.launches) + sum(_nbytes(found) for _, found in self.one_by_one)


def _nbytes(found: "Pieces | OnePass") -> int:
    if isinstance(found, OnePass):
        return found.nbytes
    factors = [each for _, each in found if each is not None]
    return sum(
        each.nbytes if isinstance(each, Multiplier) else sum(entries.nbytes for entries in each) for each in factors
    )


def _takes_one_pass(row: Row) -> bool:
    local, grad = local_rows(row.param)[0], row.param.grad
    assert grad is not None
    return (
        row.name is not None
        and local.is_cpu
        and local.dtype in {torch.float32, torch.float64}
        and local.numel() >= _SMALL
        and takes(local, [local_rows(each)[0] for each in (grad, *row.states)])
    )


def _one_pass(form: ClosedForm, row: Row, options: Options) -> OnePass | None:
    assert row.name is not None
    local, update, flags = local_rows(row.param)[0], form.update(), form.flags(options)
    operator = form.plan.blocks[row.name].operator
    height = operator.out_channels // operator.groups
    entries = entries_of_block(form.plan, row.name, form.degree, row.rows)
    return one_pass(update, flags, local, entries, height, 0 if row.rows is None else row.rows.start)


def _pieces(form: ClosedForm, row: Row) -> Pieces:
    """The rows to step at once, each with its factors: all of them, or on a CPU as many as stay in its cache."""
    local = local_rows(row.param)[0]
    whole = form.factors(row.name, local, row.rows) if row.name is not None else None
    length = local[0].numel() if local.ndim and local.shape[0] else 0
    dense = row.param.grad is not None and not row.param.grad.is_sparse
    cut = dense and local.is_cpu and local.numel() > _PIECE and (local.is_contiguous() or has_channels_last(local))
    if row.name is not None:
        branches = form.plan.blocks[row.name].branches.values()
        cut = cut and all(placement.fills_groups or placement.is_identity for placement in branches)
    if not cut:
        return [(None, whole)]
    step, first = max(1, _PIECE // length), 0 if row.rows is None else row.rows.start
    starts = range(0, local.shape[0], step)
    slices = [slice(start, min(start + step, local.shape[0])) for start in starts]
    if row.name is None:
        return [(each, None) for each in slices]
    return [(each, form.factors(row.name, local, range(first + each.start, first + each.stop))) for each in slices]
