"""A layer and a weight of its own for each norm of an exported program.

torchao folds a norm into the layer before it, whoever else uses that layer's output or weight. So a layer whose output
something else reads, as in a pre-activation block, is computed once more for its norm; and a weight that two layers
have, as where one is applied twice, is there for each.
"""

from operator import attrgetter
from typing import TypeGuard

import torch
from torch import nn
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
# what torchao folds norms into; weight and bias are the second and the third argument
_FOLDED_INTO = (
    *(_ATEN.conv1d.default, _ATEN.conv1d.padding, _ATEN.conv2d.default, _ATEN.conv2d.padding),
    *(_ATEN.conv3d.default, _ATEN.conv3d.padding, _ATEN.linear.default),
    *(_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input),
)


def own_layers_(program: GraphModule) -> None:
    """Gives each norm behind a convolution or a linear layer one that nothing else uses, with a weight of its own."""
    for norm, layer in _normed(program):
        own = _again(layer, norm) if len(layer.users) > 1 else layer
        for place, tensor in enumerate(own.args[1:3], start=1):
            if _is_shared(tensor):
                own.update_arg(place, _copy(program, tensor, own))
    program.recompile()


def share_weights(program: GraphModule) -> bool:
    """Whether something else uses the weight or the bias of a layer that a norm is behind."""
    return any(_is_shared(tensor) for _, layer in _normed(program) for tensor in layer.args[1:3])


def _is_shared(tensor: object) -> TypeGuard[Node]:
    return isinstance(tensor, Node) and tensor.op == "get_attr" and len(tensor.users) > 1


def _normed(program: GraphModule) -> list[tuple[Node, Node]]:
    """The norms, each with the layer that it is behind."""
    norms = [node for node in program.graph.nodes if node.target == _ATEN.batch_norm.default]
    return [(norm, norm.args[0]) for norm in norms if norm.args[0].target in _FOLDED_INTO]


def _again(layer: Node, norm: Node) -> Node:
    """The same layer, for its norm alone."""
    graph = norm.graph
    with graph.inserting_before(norm):
        own = graph.node_copy(layer)
    *outer, (_, kind) = layer.meta["source_fn_stack"]  # by which torchao tells layers apart
    own.meta = {**layer.meta, "source_fn_stack": [*outer, (own.name, kind)]}
    norm.replace_input_with(layer, own)
    return own


def _copy(program: GraphModule, tensor: Node, layer: Node) -> Node:
    """The same weight or bias, for a layer alone."""
    name = f"_own_{layer.name}_{tensor.name}"
    value = attrgetter(str(tensor.target))(program).detach().clone()
    program.register_parameter(name, nn.Parameter(value, requires_grad=False))
    with program.graph.inserting_before(layer):
        own = program.graph.get_attr(name)
    own.meta = {**tensor.meta}
    return own
