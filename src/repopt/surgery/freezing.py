"""freeze(): a search model in training goes on as the plain model, its scales the constants of the imagined blocks.

    W'    =  sum_b embed_b(s_b * W_b)
    m'    =  sum_b embed_b(s_b * m_b)          the momentum of SGD, which is linear in the gradients of the kernels

From here on the plain model and the search model whose scales are no longer trained take the same steps. Rules that are
not linear, AdamW's among them, cannot merge their state: a second moment holds squares, and those of the branches were
gathered while the scales changed. They take the branch route, which keeps the state of each branch as it was.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from repopt.algebra import csla
from repopt.algebra.sharding import is_sharded
from repopt.optim.attachment import Handle, attach_as_is, automatic_route
from repopt.optim.clipping import check_max_norm
from repopt.optim.fingerprints import fingerprint
from repopt.optim.rep_optimizer import RepOptimizer
from repopt.plans.patterns import check_model
from repopt.plans.planning import Plan
from repopt.plans.stamps import KEY, SAVED
from repopt.surgery.blocks import SearchBlock
from repopt.surgery.conversion import extract_scales, merge, search_blocks

Group = dict[str, Any]


@torch.no_grad()
def freeze(
    search: nn.Module, optimizer: Optimizer, max_norm: float | None = None
) -> tuple[nn.Module, Optimizer, Handle]:
    """Turns a search model in training into the plain model, and its optimizer into a re-parameterized one.

    Call it between a step and the next backward pass; where gradients are accumulated, between two whole steps, since
    those of the kernels are lost. Both are changed in place and returned: schedulers, a GradScaler and references to
    the model stay valid. The optimizer loses the scales, gets each operator's weight in the place of its kernels, and
    is attached. A param group that held nothing but scales stays, empty. What was made for the old parameters, such as
    DistributedDataParallel, is made anew around the plain model; a moving average of them is merged.

    Args:
        search: what `search_model` returned.
        optimizer: the one that trains it, of torch.optim or any that can be attached.
        max_norm: as `attach` takes it.

    Returns:
        The plain model, the optimizer, and the handle; `handle.plan.scales` are the scales, to be saved.

    Raises:
        ValueError: the model is no search model, or the optimizer does not train all kernels of a block alike. Nothing
            has been changed then.

    Example:
        >>> search = repopt.search_model(net, plan)
        >>> optimizer = torch.optim.SGD(repopt.decay_groups(search, 4e-5), lr=0.1, momentum=0.9)
        >>> ...  # three tenths of the training
        >>> model, optimizer, handle = repopt.freeze(search, optimizer)
    """
    check_model(search, "freeze")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"freeze takes the search model and its optimizer, not a {type(optimizer).__name__}")
    if any(isinstance(module, DistributedDataParallel) for module in search.modules()):
        raise ValueError(
            "DistributedDataParallel averages the gradients of the parameters that it was made with: freeze the model "
            "inside it, search.module, and wrap the plain model anew"
        )
    if torch.is_inference_mode_enabled():
        raise ValueError("what freeze makes is trained on: call it outside of torch.inference_mode()")
    if KEY in optimizer.defaults and not isinstance(optimizer, RepOptimizer):
        raise ValueError(
            "this optimizer is attached to a plan already: freeze all search models that it trains at once, as "
            "freeze(nn.ModuleList([first, second]), optimizer), or call detach() on its handle first"
        )
    if max_norm is not None:
        check_max_norm(max_norm)
    scales, route = extract_scales(search), automatic_route(optimizer)
    blocks = {name: copy.copy(block) for name, block in search_blocks(search).items()}  # which outlive the merging
    homes = {name: home for name, block in blocks.items() if (home := _home(optimizer, name, block)) is not None}
    states = {
        name: {branch: optimizer.state.get(kernel, {}) for branch, kernel in block.kernels.items()}
        for name, block in blocks.items()
    }
    merged = {name: _merged(block, states[name], name) for name, block in blocks.items() if route == "grad"}

    model = merge(search, inplace=True)
    plan = Plan(model=model, blocks={name: block.block for name, block in blocks.items()}).with_scales(scales)
    weights = {name: module.weight for name, module in plan.modules().items()}
    for name, block in blocks.items():
        for param in (*block.kernels.values(), *block.scales.values()):
            optimizer.state.pop(param, None)
        if name in homes and route == "branch":
            kept = {
                branch: {"kernel": kernel.detach(), "state": states[name][branch]}
                for branch, kernel in block.kernels.items()
            }
            homes[name].setdefault(SAVED, {})[name] = kept
        elif merged.get(name):
            optimizer.state[weights[name]] = merged[name]
    mark = fingerprint(plan, route)
    for group in optimizer.param_groups:
        here = {name: weights[name] for name, home in homes.items() if home is group}
        _replace_params_(group, blocks, here)
        group[KEY] = mark
        if route == "branch":
            group.setdefault(SAVED, {})
    return model, optimizer, attach_as_is(optimizer, plan, max_norm=max_norm)


def _home(optimizer: Optimizer, name: str, block: SearchBlock) -> Group | None:
    """The param group of a block's kernels, the first of several with the same options; None where none is trained."""
    kernels = list(block.kernels.values())
    if any(is_sharded(kernel) for kernel in kernels):
        raise ValueError(f"the kernels of {name!r} are sharded: freeze the search model before fully_shard")
    held = [
        next((group for group in optimizer.param_groups if any(param is kernel for param in group["params"])), None)
        for kernel in kernels
    ]
    found = [group for group in held if group is not None]
    if not found and not any(kernel.requires_grad for kernel in kernels):
        return None
    if len(found) < len(held) or len({kernel.requires_grad for kernel in kernels}) > 1:
        raise ValueError(
            f"not all kernels of {name!r} are trained by this optimizer: give freeze the optimizer that trains the "
            "search model"
        )
    for option in optimizer.defaults:
        values = [group.get(option) for group in found]  # load_state_dict adds some to the defaults alone
        if any(value is not values[0] and value != values[0] for value in values):
            raise ValueError(
                f"the kernels of {name!r} are trained with different options ({option}), and one weight has one: group "
                "them alike, as repopt.decay_groups does"
            )
    return found[0]


def _merged(block: SearchBlock, states: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The weight's state: what is kept for each entry is merged as the kernels are, counts are the same for all."""
    first = next(iter(states.values()))
    if any(state.keys() != first.keys() for state in states.values()):
        raise ValueError(f"the optimizer has stepped some kernels of {name!r} and not others: step them all, or none")
    found = {}
    for key, value in first.items():
        if isinstance(value, Tensor) and value.ndim:
            value = csla.equivalent_kernel(
                block.block, block.branch_scales(), {branch: state[key] for branch, state in states.items()}
            )
        found[key] = value
    return found


def _replace_params_(group: Group, blocks: Mapping[str, SearchBlock], weights: Mapping[str, Tensor]) -> None:
    """Puts each weight where the first parameter of its block was, and takes the kernels and scales out.

    So the order is that of the plain model's parameters, and the state loads into an optimizer made from these.
    """
    owner: dict[int, str] = {}
    gone: set[int] = set()
    for name, block in blocks.items():
        branches = [*block.kernels.values(), *block.scales.values()]
        gone.update(map(id, branches))
        for param in (*branches, *([] if block.bias is None else [block.bias])):  # a bias may be that of several
            owner.setdefault(id(param), name)
    left = dict(weights)
    labels = group.get("param_names", [""] * len(group["params"]))
    kept: list[tuple[Any, str]] = []
    for param, label in zip(group["params"], labels, strict=True):
        operator = owner.get(id(param))
        if operator is not None and operator in left:
            kept.append((left.pop(operator), f"{operator}.weight".lstrip(".")))
        if id(param) not in gone:
            kept.append((param, label))
    group["params"] = [param for param, _ in kept]
    if "param_names" in group:
        group["param_names"] = [label for _, label in kept]
