"""Surgery: a plain model into its Hyper-Search model, its CSLA twin or the model with real branches, and back.

Each planned operator is replaced by a block (`surgery/blocks.py`) under its own name. Everything else is taken over as
it is: other parameters, device, dtype, memory format, hooks, training flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.algebra.csla import Convention
from repopt.algebra.operators import LinearOperator
from repopt.plans.copying import copied
from repopt.plans.patterns import check_model, check_not_shared, check_plain_forward, clean_modules
from repopt.plans.planning import Plan, ScalesLike, check_kernel_names, check_plan
from repopt.plans.scales import Counting, Scales
from repopt.surgery.blocks import BranchBlock, CSLABlock, LinearAdditionBlock, Norm, SearchBlock
from repopt.surgery.successors import stand_in_

BlockT = TypeVar("BlockT", bound=LinearAdditionBlock)
# these read the weights of children that they do not call
_READING = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def search_model(
    net: nn.Module,
    plan: Plan,
    *,
    start: Counting | float | ScalesLike = "authors",
    kernel: Convention = "authors",
    generator: torch.Generator | None = None,
    inplace: bool = False,
) -> nn.Module:
    """The Hyper-Search model: every planned operator becomes a block whose scales are trained.

    The blocks' kernels are drawn anew. Train the model with any loop and any optimizer, then `extract_scales`.

    Args:
        net: the model, or a copy of it.
        plan: which operators imagine which branches; its scales, if it has any, are not looked at.
        start: where the scales start: sqrt(2/l) with l counted as the `authors` (and appendix B) or as the `paper`
            (section 4.1) do, one number for all, or scales as `plan` takes them. The identity starts at 1 unless these
            hold it.
        kernel: how kernels are drawn, as in `plan.init_`.
        generator: for reproducible draws.
        inplace: change the model instead of a copy.

    Raises:
        ValueError: the model lacks an operator of the plan, or one cannot be replaced by a block.
    """
    check_plan(plan)
    scales = _starting_scales(plan, start)

    def block_for(name: str, operator: LinearOperator) -> SearchBlock:
        block = plan.blocks[name]
        kernels = csla.initial_kernels(
            block, operator.weight, kernel=kernel, identity=scales.get(name, {}), generator=generator
        )
        return SearchBlock(operator, block, scales.get(name, {}), kernels)

    return _with_blocks(net, plan, block_for, inplace)


def extract_scales(search: nn.Module) -> Scales:
    """The scales that a Hyper-Search model has found."""
    check_model(search, "extract_scales")
    blocks = search_blocks(search)
    if not blocks:
        raise ValueError(
            f"this {type(search).__name__} holds no trained scales: give the model that search_model returned, "
            "before it is merged"
        )
    return Scales({name: block.searched() for name, block in blocks.items()})


def csla_model(
    net: nn.Module,
    plan: Plan,
    kernels: Mapping[str, Mapping[str, Tensor]] | None = None,
    *,
    inplace: bool = False,
) -> nn.Module:
    """The CSLA twin: every planned operator is written out as its real multi-branch block with constant scales.

    Args:
        net: the model, or a copy of it; its other parameters are taken over as they are.
        plan: a plan with scales.
        kernels: each block's own kernels, as `plan.init_()` returns them; without them the split of least norm of the
            model's weights. Either way the twin computes what the model computes: what the weights have changed since
            the kernels were drawn is spread over them.
        inplace: change the model instead of a copy.

    Raises:
        ValueError: an operator shares its weight with another module, or has a forward of its own.
    """
    check_plan(plan)
    check_kernel_names(kernels or {}, plan.blocks)

    def block_for(name: str, operator: LinearOperator) -> CSLABlock:
        block, constants = plan.blocks[name], plan.constants(name)
        if kernels is None:
            own: Mapping[str, Tensor] = csla.least_norm_split(block, constants, operator.weight, name)
        else:
            csla.check_kernels(block, kernels.get(name, {}), name)
            own = csla.following(block, constants, kernels[name], operator.weight, name)
        return CSLABlock(operator, block, constants, own)

    return _with_blocks(net, plan, block_for, inplace)


def branch_model(
    net: nn.Module,
    plan: Plan,
    norm: Norm = True,
    *,
    kernel: Convention = "authors",
    generator: torch.Generator | None = None,
    inplace: bool = False,
) -> nn.Module:
    """The real thing, as a baseline: every planned operator becomes parallel branches, each with a batch norm.

    This is how RepVGG and ACNet train: more work in each step, and a conversion at the end, which is `merge`. The
    kernels are drawn anew. Train the model with any loop and any optimizer.

    The norms are added to those that the network has: one that follows an operator stays where it is, behind the sum of
    the branches. In eval mode a norm is a scale and a shift, so `merge` folds the branches' norms into the operator's
    kernel and bias, and gives it a bias if it has none.

    Args:
        net: the model, or a copy of it.
        plan: which operators have which branches; its scales, if it has any, are not looked at, as the norms have their
            own.
        norm: True for a norm in each branch; `"qarepvgg"` for QARepVGG's form, which quantizes better: a norm in the
            branch that is as large as the operator, none in the others, and one behind the sum; False for no norms.
        kernel: how kernels are drawn, as in `plan.init_`.
        generator: for reproducible draws.
        inplace: change the model instead of a copy.

    Raises:
        ValueError: the model lacks an operator of the plan, or one cannot be replaced by a block.

    Example:
        >>> real = branch_model(net, repopt.plan(net, "repvgg"))
        >>> ...  # train it
        >>> plain = merge(real)
    """
    check_plan(plan)
    if not isinstance(norm, bool) and not (isinstance(norm, str) and norm == "qarepvgg"):
        raise ValueError(f"norm is True, False or 'qarepvgg', not {norm!r}")
    for name, operator in plan.on(net).modules().items() if norm else ():
        _check_called(net, operator, name)

    def block_for(name: str, operator: LinearOperator) -> BranchBlock:
        block = plan.blocks[name]
        drawn = csla.initial_kernels(block, operator.weight, kernel=kernel, identity={}, generator=generator)
        trained = {branch: own for branch, own in drawn.items() if not block.branches[branch].is_identity}
        return BranchBlock(operator, block, trained, norm)

    return _with_blocks(net, plan, block_for, inplace)


def merge(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """The plain model of a search, CSLA or branch model: every block becomes the operator with the equivalent kernel.

    It computes what the model computes; that of a branch model, what it computes in eval mode.

    Args:
        model: what `search_model`, `csla_model` or `branch_model` returned.
        inplace: change the model instead of a copy.
    """
    check_model(model, "merge")
    merged = model if inplace else copied(model)
    blocks = [module for module in merged.modules() if isinstance(module, LinearAdditionBlock)]
    if not blocks:
        raise ValueError(
            f"this {type(model).__name__} holds no block to merge: give a model made by search_model, csla_model or "
            "branch_model"
        )
    _check_not_compiled(merged, {block: block.operator_name for block in blocks})
    return _replaced(merged, {block: block.merged() for block in blocks})


def csla_blocks(model: nn.Module) -> dict[str, CSLABlock]:
    """The blocks of a CSLA model by operator name."""
    return _blocks_of(model, CSLABlock)


def search_blocks(model: nn.Module) -> dict[str, SearchBlock]:
    """The blocks of a search model by operator name."""
    return _blocks_of(model, SearchBlock)


def _blocks_of(model: nn.Module, kind: type[BlockT]) -> dict[str, BlockT]:
    """Each block once: by the name it was planned under, where the model reaches it under several."""
    names: dict[BlockT, list[str]] = {}
    for name, module in clean_modules(model).items():
        if isinstance(module, kind):
            names.setdefault(module, []).append(name)
    planned = {
        block: block.operator_name if block.operator_name in known else known[0] for block, known in names.items()
    }
    return {name: block for block, name in planned.items()}


def _starting_scales(plan: Plan, start: Counting | float | ScalesLike) -> Scales:
    if isinstance(start, str) and start in get_args(Counting):
        return Scales.depth_init(plan, cast(Counting, start))
    if isinstance(start, int | float):
        return Scales.constant(plan, start)
    started = plan.with_scales(start).scales
    assert started is not None
    return started


def _with_blocks(
    net: nn.Module, plan: Plan, block_for: Callable[[str, LinearOperator], LinearAdditionBlock], inplace: bool
) -> nn.Module:
    """The model with every planned operator replaced."""
    check_model(net, "surgery")
    model = net if inplace else copied(net)
    operators = plan.on(model).modules()
    for name, operator in operators.items():
        _check_replaceable(model, operator, name)
    names: dict[nn.Module, str] = {operator: name for name, operator in operators.items()}
    _check_not_compiled(model, names)
    _check_no_key(model, names)
    blocks = {name: block_for(name, operator) for name, operator in operators.items()}  # all, before anything changes
    for name, block in blocks.items():
        block.operator_name = name
    return _replaced(model, {operator: blocks[name] for operator, name in names.items()})


def _check_replaceable(model: nn.Module, operator: LinearOperator, name: str) -> None:
    """Raises where a block in the operator's place would compute or train something else."""
    check_not_shared(model, operator, name)
    check_plain_forward(operator, name)
    own = {each for each, param in operator._parameters.items() if param is not None} - {"weight", "bias"}
    if own:
        raise ValueError(
            f"{name!r} has a parameter of its own, {min(own)!r}, which a block would lose: keep it in another module, "
            "or leave the operator out of the plan"
        )


def _check_not_compiled(model: nn.Module, names: Mapping[nn.Module, str]) -> None:
    """Raises where what torch.compile made of a module would go on with it after its replacement."""
    for wrapper in model.modules():
        compiled = getattr(wrapper, "_orig_mod", None)
        if compiled is not None and compiled in names:
            raise ValueError(
                f"{names[compiled]!r} is compiled by itself, and would go on as it is: compile the whole model, or "
                "call its compile()"
            )


def _check_no_key(model: nn.Module, names: Mapping[nn.Module, str]) -> None:
    """Raises where a module looks something up by an operator: it would not find the block."""
    for attribute, kept in (each for module in model.modules() for each in vars(module).items()):
        if isinstance(kept, dict | set | frozenset) and (keys := [key for key in kept if key in names]):
            raise ValueError(
                f"{names[keys[0]]!r} is a key or an element of {attribute!r}, where its block would not be found: "
                "go by its name instead"
            )


def _check_called(model: nn.Module, operator: LinearOperator, name: str) -> None:
    """Raises where torch may read an operator's weight and bias instead of calling it: norms would be left out."""
    for parent in model.modules():
        reads = any(isinstance(parent, kind) and type(parent).forward is kind.forward for kind in _READING)
        if reads and operator in parent.children():
            raise ValueError(
                f"{name!r} belongs to a {type(parent).__name__}, which may read its weight instead of calling it, and "
                "would miss the norms of its branches: leave it out of the plan, or give norm=False"
            )


def _replaced(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Puts new modules wherever the model holds old ones; returns the model, or what replaces all of it."""
    for parent in list(model.modules()):
        for attribute, child in list(parent._modules.items()):  # named_children would skip a second name
            if child is not None and child in swaps:
                setattr(parent, attribute, swaps[child])
    replaced = swaps.get(model, model)
    for old, new in swaps.items():
        stand_in_(old, new)
    return replaced
