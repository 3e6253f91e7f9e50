"""Which layers INT8 costs accuracy at: each layer quantized alone, and the noise behind it when all are.

    SNR  =  10 log10( |y|^2 / |y - y_int8|^2 )

A layer that costs much alone needs a finer scale, QAT or floating point. With all layers quantized, the ratio shows
where along the depth the signal is lost; all weights alone and all inputs alone show which of the two loses it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from repopt.plans.copying import copied
from repopt.quantize.pt2e import calibrate_, check_batches, prepare, switch_
from repopt.quantize.setting import Int8, check_nearest


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """What INT8 does at one layer, or to all weights or all inputs of layers.

    Attributes:
        layer: the module's name, or `all weights`, or `all inputs`.
        agreement_alone: percent of images whose predicted class stays, with this alone quantized.
        snr_alone: of the logits in dB, with this alone quantized.
        snr: of the layer's output in dB, with all layers quantized; None for all weights or all inputs.
    """

    layer: str
    agreement_alone: float
    snr_alone: float
    snr: float | None


@torch.no_grad()
def layer_costs(
    model: nn.Module, calibration: Sequence[Tensor], images: Sequence[Tensor], setting: Int8
) -> list[LayerCost]:
    """The cost of INT8 by layer, in the order of computation, then of all weights and of all inputs.

    Args:
        model: in the form that is to be quantized; it is left as it is.
        calibration: batches to measure activations on.
        images: batches to compare on.
        setting: how, by torchao.
    """
    check_nearest(setting, "layers are measured with weights rounded to the nearest")
    check_batches(model, calibration)
    check_batches(model, images)
    prepared = prepare(copied(model, training=False), calibration[0], setting)
    calibrate_(prepared, calibration)
    device = next(prepared.parameters()).device
    batches = [batch.to(device) for batch in images]
    layers = _layers(prepared)
    switch_(prepared, measure=False, quantize=False)
    float_logits = _logits(prepared, batches)
    float_outputs = _outputs(prepared, batches[0], layers)
    parts = {layer: fakes for layer, (_, fakes) in layers.items()}
    every = [node for nodes, _ in layers.values() for node in nodes]
    inputs, weights = ([fake for node in every for fake in _fakes(prepared, node, number)] for number in (0, 1))
    alone = {}
    for part, fakes in {**parts, "all weights": weights, "all inputs": inputs}.items():
        for fake in fakes:
            fake.enable_fake_quant(True)
        alone[part] = _logits(prepared, batches)
        for fake in fakes:
            fake.enable_fake_quant(False)
    switch_(prepared, measure=False, quantize=True)
    outputs = _outputs(prepared, batches[0], layers)
    return [
        LayerCost(
            layer=part,
            agreement_alone=100 * (logits.argmax(1) == float_logits.argmax(1)).double().mean().item(),
            snr_alone=signal_to_noise(float_logits, logits),
            snr=signal_to_noise(float_outputs[part], outputs[part]) if part in layers else None,
        )
        for part, logits in alone.items()
    ]


def signal_to_noise(signal: Tensor, noisy: Tensor) -> float:
    """In dB; infinite where nothing differs."""
    power, noise = signal.double().square().sum(), (signal.double() - noisy.double()).square().sum()
    return (10 * torch.log10(power / noise)).item()


def _layers(prepared: GraphModule) -> dict[str, tuple[list[Node], list[Any]]]:
    """{module's name: (the nodes that compute it, the fake quantizations of their inputs and weights)}."""
    operators = {torch.ops.aten.conv2d.default, torch.ops.aten.linear.default}
    found = dict[str, tuple[list[Node], list[Any]]]()
    for node in prepared.graph.nodes:
        if node.target in operators:
            fakes = _fakes(prepared, node, 0, 1)
            if fakes:
                *_, (name, _) = node.meta["nn_module_stack"].values()
                nodes, all_fakes = found.setdefault(name, ([], []))
                nodes.append(node)
                all_fakes += fakes
    return found


def _fakes(prepared: GraphModule, node: Node, *arguments: int) -> list[Any]:
    """The fake quantizations in front of an operator's arguments, 0 for its input and 1 for its weight."""
    given = [node.args[number] for number in arguments]
    return [prepared.get_submodule(str(each.target)) for each in given if each.op == "call_module"]  # type: ignore[union-attr]


def _logits(prepared: GraphModule, batches: Sequence[Tensor]) -> Tensor:
    return torch.cat([prepared(batch.clone()) for batch in batches])  # a program may change its images in place


def _outputs(
    prepared: GraphModule, batch: Tensor, layers: dict[str, tuple[list[Node], list[Any]]]
) -> dict[str, Tensor]:
    """All that each layer puts out, by name."""
    names = {node: name for name, (nodes, _) in layers.items() for node in nodes}
    found = defaultdict[str, list[Tensor]](list)

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if n in names:
                found[names[n]].append(result.flatten())
            return result

    Recorder(prepared).run(batch.clone())
    return {name: torch.cat(outputs) for name, outputs in found.items()}
