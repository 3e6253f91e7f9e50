"""INT8 programs as files: tensors as safetensors, the graph beside them as data. Loading one executes nothing.

A graph is a list of steps. A step names one of a few operators, or a part of what an earlier one returned, and its
arguments are numbers, dtypes, and the places of earlier steps. A file cannot ask for anything else, whoever wrote it.
Earlier versions wrote .pt2 archives, which are unpickled: they are loaded only on request.
"""

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from repopt.files import read_sealed, write_sealed
from repopt.plans.wording import first_line
from repopt.quantize.pt2e import stay_in_eval_mode_
from repopt.quantize.quiet import quiet_torchao
from repopt.quantize.setting import TAKE_ONNX

PROGRAM, OLD_PROGRAM = "program.safetensors", "program.pt2"

_INPUT, _TENSOR, _PART, _OUTPUT = "input", "tensor", "part", "output"
# all that INT8 programs may consist of: what repopt's models need, and the usual ConvNets
_OPERATORS = frozenset(
    {
        "quantized_decomposed.quantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_tensor.default",
        "quantized_decomposed.dequantize_per_channel.default",
        "aten.adaptive_avg_pool2d.default",
        "aten.adaptive_max_pool2d.default",
        "aten.add.Tensor",
        "aten.add_.Tensor",
        "aten.amax.default",
        "aten.avg_pool2d.default",
        "aten.batch_norm.default",
        "aten.cat.default",
        "aten.chunk.default",
        "aten.clamp.default",
        "aten.conv2d.default",
        "aten.conv_transpose2d.input",
        "aten.div.Tensor",
        "aten.dropout.default",
        "aten.dropout_.default",
        "aten.elu.default",
        "aten.elu_.default",
        "aten.flatten.using_ints",
        "aten.gelu.default",
        "aten.group_norm.default",
        "aten.hardsigmoid.default",
        "aten.hardswish.default",
        "aten.hardswish_.default",
        "aten.hardtanh.default",
        "aten.hardtanh_.default",
        "aten.instance_norm.default",
        "aten.layer_norm.default",
        "aten.leaky_relu.default",
        "aten.leaky_relu_.default",
        "aten.linear.default",
        "aten.matmul.default",
        "aten.max_pool2d.default",
        "aten.mean.dim",
        "aten.mish.default",
        "aten.mul.Tensor",
        "aten.permute.default",
        "aten.prelu.default",
        "aten.relu.default",
        "aten.relu6.default",
        "aten.relu6_.default",
        "aten.relu_.default",
        "aten.reshape.default",
        "aten.sigmoid.default",
        "aten.silu.default",
        "aten.silu_.default",
        "aten.slice.Tensor",
        "aten.softmax.int",
        "aten.split.Tensor",
        "aten.split_with_sizes.default",
        "aten.squeeze.dim",
        "aten.sub.Tensor",
        "aten.sym_size.int",
        "aten.tanh.default",
        "aten.transpose.int",
        "aten.unsqueeze.default",
        "aten.upsample_bilinear2d.vec",
        "aten.upsample_nearest2d.vec",
        "aten.view.default",
    }
)
_DTYPES = {str(dtype): dtype for dtype in (torch.uint8, torch.int8, torch.float32)}

_Step = tuple[str, list[Any]]


def save_program(program: GraphModule, path: Path) -> None:
    """Writes an INT8 program as one file, in one move.

    Raises:
        ValueError: it has an operator that such a file cannot hold.
    """
    steps, tensors, places = list[_Step](), dict[str, Tensor](), dict[Node, int]()
    for place, node in enumerate(program.graph.nodes):
        places[node] = place
        if node.op == "get_attr":
            name = str(node.target)
            tensors[name] = attrgetter(name)(program).detach().cpu()
            steps.append((_TENSOR, [name]))
        elif node.op == "placeholder":
            steps.append((_INPUT, []))
        elif node.op == "output":
            steps.append((_OUTPUT, [places[each] for each in node.all_input_nodes]))
        else:
            _check_operator(node)
            name = _PART if node.target is getitem else str(node.target)
            steps.append((name, _encoded(node.args, places)))
    write_sealed(path, tensors, {"steps": json.dumps(steps)})


def check_holds(graph: Graph) -> None:
    """Raises, before any work, where a file could not hold the INT8 program of a model that computes this.

    What depends on the weights alone is not in the program.
    """
    images = set[Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not images.isdisjoint(node.all_input_nodes):
            images.add(node)
            if node.op == "call_function":
                _check_operator(node)


def _check_operator(node: Node) -> None:
    if node.target is getitem:  # a part of what another operator, such as chunk, returns
        return
    if str(node.target) not in _OPERATORS or node.kwargs:
        options = f" with {' and '.join(node.kwargs)}" if str(node.target) in _OPERATORS else ""
        raise ValueError(f"an INT8 file cannot hold {node.target}{options}: give {TAKE_ONNX}")


def load_program(path: str | Path, *, trust: bool = False) -> nn.Module:
    """An INT8 program from its file; torch.compile with inductor's freezing makes it fast.

    Args:
        path: the file.
        trust: load a .pt2 archive of an earlier version too. It can execute code: trust the one who wrote it.

    Raises:
        ValueError: the file is damaged or holds something else, or it is an archive that is not trusted.
    """
    path = Path(path)
    if path.suffix == ".pt2":
        return _load_archive(path, trust=trust)
    tensors, metadata = read_sealed(path)
    with quiet_torchao():
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401  its operators
    try:
        return _built(msgspec.convert(json.loads(metadata["steps"]), list[_Step]), tensors)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} holds no INT8 program ({error}): quantize the run again") from error


def _load_archive(path: Path, *, trust: bool) -> nn.Module:
    if not trust:
        raise ValueError(
            f"{str(path)!r} was written by an earlier version and can execute code when it is loaded: quantize the run "
            "again, or give --trust if you trust the one who wrote it"
        )
    with quiet_torchao():
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401  its operators

        try:
            program: GraphModule = torch.export.load(path).module(check_guards=False)
        except Exception as error:  # a damaged archive breaks torch in many ways
            raise ValueError(f"{str(path)!r} cannot be loaded ({first_line(error)}): quantize the run again") from error
    stay_in_eval_mode_(program)
    program._forward_pre_hooks.clear()  # they insist on the exported size; the operators take any
    return program


def _built(steps: Sequence[_Step], tensors: Mapping[str, Tensor]) -> GraphModule:
    names = [operator for operator, _ in steps]
    if names.count(_INPUT) != 1 or names.count(_OUTPUT) != 1 or names[-1] != _OUTPUT:
        raise ValueError("it does not lead from one input to one output")
    # torch.fx writes Python code from a graph: no text of the file may get into it, so names are given here
    graph, root, nodes = Graph(), nn.Module(), list[Node]()
    for place, (operator, args) in enumerate(steps):
        if operator == _INPUT:
            nodes.append(graph.placeholder("x"))
        elif operator == _TENSOR:
            root.register_buffer(f"tensor_{place}", tensors[args[0]])
            nodes.append(graph.get_attr(f"tensor_{place}"))
        elif operator == _OUTPUT:
            nodes.append(graph.output(nodes[args[0]]))
        elif operator == _PART:
            nodes.append(graph.call_function(getitem, tuple(_decoded(args, nodes))))
        elif operator in _OPERATORS:
            nodes.append(graph.call_function(attrgetter(operator)(torch.ops), tuple(_decoded(args, nodes))))
        else:
            raise ValueError(f"there is no operator {operator!r}")
    graph.lint()
    return GraphModule(root, graph)


def _encoded(value: Any, places: Mapping[Node, int]) -> Any:
    if isinstance(value, Node):
        return {"step": places[value]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    return [_encoded(each, places) for each in value] if isinstance(value, list | tuple) else value


def _decoded(value: Any, nodes: Sequence[Node]) -> Any:
    if isinstance(value, list):
        return [_decoded(each, nodes) for each in value]
    if isinstance(value, dict):
        return nodes[value["step"]] if "step" in value else _DTYPES[value["dtype"]]
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    raise ValueError(f"{value!r} is no argument")
