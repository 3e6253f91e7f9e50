"""A plan: which operator of a model imagines which block, with which scales.

A plan holds its model and knows operators by name, never by the identity of a parameter: it may be made before or after
the model is wrapped, compiled or sharded, and `on` puts it on a copy.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.algebra.csla import Block, Convention, IdentityStart, Kernels, imagine
from repopt.algebra.multiplier import Multiplier, grad_mult
from repopt.algebra.operators import LinearOperator, check_weight, is_linear_operator, operator_of, spell
from repopt.algebra.sharding import local_rows, write_rows_
from repopt.plans.choices import check_choice
from repopt.plans.declarations import declared_branches, declared_depths, left_out_of_parts
from repopt.plans.patterns import (
    Branches,
    Chooser,
    Chosen,
    check_model,
    chosen_operators,
    clean_modules,
    matching_operators,
)
from repopt.plans.presets import preset_operators
from repopt.plans.provenance import provenance
from repopt.plans.scales import Scales
from repopt.plans.wording import counted, listed

_MADE = {"ones": Scales.ones, "depth": Scales.depth_init}  # scales that need no file

ScalesLike = Scales | Mapping[str, Mapping[str, Tensor | float]] | str | Path


def plan(model: nn.Module, branches: Branches | Chooser | str | None = None, scales: ScalesLike | None = None) -> Plan:
    """Plans the re-parameterization of a model.

    Args:
        model: any model, wrapped or not.
        branches: which operators imagine which branches:

            - `"repvgg"` or `"acnet"`, a preset, plans every convolution with a kernel of 3 or more in each dimension.
              The first imagines k x k, 1 x 1 and identity (a depthwise one no 1 x 1), the second k x k, 1 x k and
              k x 1. What it cannot plan is in `plan.left_out`.
            - `{regular expression: branches}` plans the operators whose names match; the first match wins.
            - A function of name and module that returns branches or None is asked for each convolution and linear
              layer.
            - None asks the model's own `repopt_branches()`, or that of a module in it, such as the backbone of a
              detector.
        scales: the constants of the branches:

            - `"ones"`, or `"depth"` for sqrt(2/l), see `Scales.depth_init`.
            - The name of shipped scales, a .safetensors file, or the authors' .pth. Scales of a whole model fit its
              backbone: what that lacks is left out, and `print(plan)` names it.
            - A `Scales`, or `{operator: {branch: number or tensor}}`.
            - None, for a plan that serves `search_model`, `branch_model` and `dirac_init_` only.

    Raises:
        ValueError: a preset finds nothing, a pattern matches nothing, a branch does not fit, or the scales do not.
        TypeError: a pattern matches a module that is not a linear operator, or one whose weight cannot be planned.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        >>> plan(net, "repvgg", scales="ones").operators
        ('0',)
        >>> plan(net, {"0": [Conv(3), Conv(1), Identity()]}, scales="ones").operators
        ('0',)
    """
    check_model(model, "plan")
    operators, left_out = _operators_of(model, declared_branches(model) if branches is None else branches)
    blocks = {name: imagine(operator_of(module), wanted, name) for name, (module, wanted) in operators.items()}
    bare = Plan(model=model, blocks=blocks, left_out=left_out)
    return bare if scales is None else bare.with_scales(scales)


def _operators_of(model: nn.Module, branches: Branches | Chooser | str) -> tuple[Chosen, dict[str, str]]:
    """The operators to plan with their branches, and what was left out."""
    if isinstance(branches, str):
        return preset_operators(model, branches)
    if callable(branches) and not isinstance(branches, type | nn.Module):
        return chosen_operators(model, branches), {}
    if not isinstance(branches, Mapping) or not all(isinstance(wanted, list | tuple) for wanted in branches.values()):
        raise TypeError(
            "branches must be a dictionary {pattern: [branches]}, the name of a preset, or a function of name and "
            f"module, not {textwrap.shorten(repr(branches), 100)}"
        )
    return matching_operators(model, branches), {}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan:
    """Which operators of a model imagine which blocks; made by `repopt.plan`.

    Attributes:
        model: the model.
        blocks: operator name -> the block it imagines, in the model's order.
        scales: the blocks' constants, where given.
        left_out: operator name -> why the preset could not plan it; `print(plan)` shows it.
    """

    model: nn.Module
    blocks: Mapping[str, Block]
    scales: Scales | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    _multipliers: dict[Any, Multiplier] = field(init=False, repr=False, default_factory=dict)

    def __repr__(self) -> str:
        operators = counted(len(self.blocks), "operator")
        return f"Plan({operators} of a {type(self.model).__name__}, scales={self.scales!r})"

    @classmethod
    def empty(cls, model: nn.Module) -> Plan:
        """A plan of no operators, for an optimizer of repopt that trains a model as it is."""
        return cls(model=model, blocks={}, scales=Scales({}))

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the planned operators."""
        return tuple(self.blocks)

    def with_scales(self, scales: ScalesLike) -> Plan:
        """The same plan with these scales."""
        found = _as_scales(scales, self).named_by(self)
        _check_scales(found, self.blocks)
        return replace(self, scales=found)

    def on(self, model: nn.Module) -> Plan:
        """The same plan on another model with the same operators, such as a copy."""
        check_model(model, "plan.on")
        other = replace(self, model=model)
        for name, module in other.modules().items():
            if operator_of(module) != self.blocks[name].operator:
                raise ValueError(f"operator {name!r} has another shape in this model than in the plan: make a new plan")
            check_weight(module, name)
        return other

    def modules(self) -> dict[str, LinearOperator]:
        """The planned operators' modules, looked up by name."""
        known = clean_modules(self.model)
        found: dict[str, LinearOperator] = {}
        for name in self.blocks:
            module = known.get(name)
            if module is None or not is_linear_operator(module):
                found_instead = (
                    "" if module is None else f" (there is a {type(module).__name__}; a block can be merged)"
                )
                raise ValueError(f"the model has no linear operator {name!r}, which the plan names{found_instead}")
            found[name] = module
        return found

    def constants(self, name: str) -> dict[str, Tensor]:
        """The constant scale of each branch of an operator; an identity's is 1."""
        block = self._block(name)
        scales = self._scales().get(name, {})
        return {
            branch: torch.ones((), device="cpu") if placement.is_identity else scales[branch]
            for branch, placement in block.branches.items()
        }

    def multiplier(self, name: str, degree: float = 1) -> Multiplier:
        """The Grad Mult of an operator for rules of this degree, on its weight's device, for the rows held here."""
        self._block(name)
        if not isinstance(degree, int | float) or not math.isfinite(degree):
            raise ValueError(f"degree is a finite number, not {degree!r}")
        return self.multiplier_of(name, self.modules()[name].weight, degree)

    def multiplier_of(self, name: str, weight: Tensor, degree: float = 1) -> Multiplier:
        """The same for an operator whose weight is at hand; made once."""
        local, rows = local_rows(weight)
        dtype = torch.promote_types(local.dtype, torch.float32)
        key = (name, degree, dtype, local.device, rows)
        if key not in self._multipliers:
            self._multipliers[key] = grad_mult(
                self.blocks[name], self.constants(name), degree=degree, dtype=dtype, device=local.device, rows=rows
            )
        return self._multipliers[key]

    @torch.no_grad()
    def init_(
        self,
        kernel: Convention = "authors",
        identity: IdentityStart = "searched",
        generator: torch.Generator | None = None,
    ) -> dict[str, Kernels]:
        """Rule of Initialization: draws every block's kernels and writes their equivalent into the operators.

        Biases are left as they are: they belong to the operator, not to a branch.

        Args:
            kernel: `authors` (torch's default for a convolution, on the branch's own shape) or `paper` (MSRA).
            identity: an identity starts as the `searched` scale of that name, where there is one, or as `one`.
            generator: for reproducible draws.

        Returns:
            The kernels that were drawn, a dictionary by operator and branch.
        """
        check_choice("identity", identity, get_args(csla.IdentityStart))
        scales, modules, drawn = self._scales(), self.modules(), {}
        for name, module in modules.items():
            csla.check_has_values(module.weight, name)
        for name, module in modules.items():
            block, weight = self.blocks[name], module.weight
            kernels = csla.initial_kernels(
                block,
                weight,
                kernel=kernel,
                identity=scales.get(name, {}) if identity == "searched" else {},
                generator=generator,
            )
            write_rows_(weight, csla.equivalent_kernel(block, self.constants(name), kernels))
            drawn[name] = {branch: tensor.to(weight.dtype) for branch, tensor in kernels.items()}
        return drawn

    def depths(self) -> dict[str, int]:
        """How deep each operator lies in its stage: the l of sqrt(2/l) as the authors count, 0 where a stage starts.

        A stage starts at each operator whose block has no identity, unless the model's `repopt_depths()` says
        otherwise. Operators before the first such start count from 1.
        """
        depths, depth = {}, 0
        for name, block in self.blocks.items():
            depth = depth + 1 if any(placement.is_identity for placement in block.branches.values()) else 0
            depths[name] = depth
        return depths | declared_depths(self.model, self.blocks)

    def __str__(self) -> str:
        rows = [("operator", "kernel", "branches", *(("min", "mean", "max") if self.scales is not None else ()))]
        total = 0
        for name, block in self.blocks.items():
            spread: tuple[str, ...] = ()
            if self.scales is not None:
                multiplier = grad_mult(block, self.constants(name))
                dense = multiplier.dense()
                spread = tuple(f"{value:.3g}" for value in (dense.min(), dense.mean(), dense.max()))
                total += multiplier.nbytes
            rows.append((name, spell(block.operator.kernel_shape), ", ".join(block.branches), *spread))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*lines, *self._notes(total)])

    def _notes(self, multiplier_bytes: int) -> Iterator[str]:
        """What stands below the table, in lines of 80 columns."""
        of_scales = f"min, mean and max of their multipliers, {multiplier_bytes:,} bytes in float32"
        yield f"{counted(len(self.blocks), 'operator')}; {'no scales' if self.scales is None else of_scales}"
        without = [f"{name} ({block.left_out})" for name, block in self.blocks.items() if block.left_out is not None]
        if without:
            yield from textwrap.wrap(f"no identity: {', '.join(without)}", 80, break_long_words=False)
        for name, why in self.left_out.items():
            yield from textwrap.wrap(f"not planned: {name}, since {why}", 80, break_long_words=False)
        if self.scales is not None and "left_out" in self.scales.metadata:
            yield f"not needed of the scales, as the backbone ends before: {self.scales.metadata['left_out']}"

    def _block(self, name: str) -> Block:
        if not isinstance(name, str) or name not in self.blocks:
            raise ValueError(f"the plan has no operator {name!r}; it has {', '.join(map(repr, self.operators))}")
        return self.blocks[name]

    def _scales(self) -> Scales:
        if self.scales is None:
            raise ValueError(
                'this plan has no scales yet: give them by plan(..., scales="depth") or plan.with_scales("depth"); '
                "only search_model and branch_model do without"
            )
        return self.scales


def check_plan(plan: object) -> None:
    """Raises unless this is a plan."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is what repopt.plan(model, ...) returns, not a {type(plan).__name__}")


def check_kernel_names(kernels: Mapping[str, object], blocks: Mapping[str, Block]) -> None:
    """Raises if kernels are given of an operator that has no block."""
    if not isinstance(kernels, Mapping):
        raise TypeError(f"kernels are what plan.init_() returned, not a {type(kernels).__name__}")
    unknown = [name for name in kernels if name not in blocks]
    if unknown:
        raise ValueError(f"there are kernels for {listed(unknown)}, which the plan does not hold")


def _as_scales(scales: ScalesLike, plan: Plan) -> Scales:
    if isinstance(scales, Scales):
        return scales
    if isinstance(scales, str) and scales in _MADE:
        return _MADE[scales](plan)
    if scales == "learn":
        raise ValueError(
            'scales="learn" is for `repopt train`: in code, train repopt.search_model(model, plan) and repopt.freeze it'
        )
    if isinstance(scales, str | Path):
        return _of_backbone(Scales.load(scales), plan)
    if not isinstance(scales, Mapping):
        raise TypeError(
            f"scales must be a name, a path, a Scales or {{operator: {{branch: number or tensor}}}}, not {scales!r}"
        )
    return Scales(scales)


def _of_backbone(scales: Scales, plan: Plan) -> Scales:
    """Scales of a whole model, without those of operators that its backbone leaves out."""
    gone = left_out_of_parts(plan.model)
    unneeded = [name for name in scales if name in gone]
    kept = {name: scales[name] for name in scales if name not in gone}
    metadata = {**scales.metadata, "left_out": ", ".join(unneeded)} if unneeded else scales.metadata
    return Scales(kept, metadata)


def _check_scales(scales: Scales, blocks: Mapping[str, Block]) -> None:
    try:
        _check_fit(scales, blocks)
    except ValueError as error:
        origin = provenance(scales)
        if origin is None:
            raise
        raise ValueError(f"{error} (these scales were searched for {origin.model})") from error


def _check_fit(scales: Scales, blocks: Mapping[str, Block]) -> None:
    unknown = [name for name in scales if name not in blocks]
    if unknown:
        raise ValueError(
            f"the scales name {listed(unknown)}, which the plan does not hold: they belong to another model, or to a "
            "whole model, and scales.only(plan) keeps what fits"
        )
    for name, block in blocks.items():
        given = scales.get(name, {})
        for branch in given:
            if branch not in block.branches:
                raise ValueError(
                    f"the scales name branch {branch!r} of {name!r}, whose branches are {listed(block.branches)}"
                )
        for branch, placement in block.branches.items():
            if branch not in given:
                if placement.is_identity:
                    continue
                raise ValueError(f"the scales lack branch {branch!r} of operator {name!r}")
            length, channels = given[branch].numel(), block.operator.out_channels
            if given[branch].ndim == 1 and length != channels:
                raise ValueError(
                    f"the scale of branch {branch!r} of {name!r} has {length} entries: it must be one number or one "
                    f"for each of the {channels} output channels"
                )
