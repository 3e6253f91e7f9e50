"""INT8 by torchao and ONNX Runtime: after training or with a short one, what it costs, and at which layer."""

from repopt.quantize.calibration import calibration_batches, trimmed
from repopt.quantize.programs import load_program
from repopt.quantize.pt2e import post_training
from repopt.quantize.ptq import quantize_model
from repopt.quantize.quantizing import Quantized, QuantizeJob, quantize_run
from repopt.quantize.sensitivity import LayerCost, layer_costs
from repopt.quantize.setting import Int8
from repopt.quantize.timing import Timing

__all__ = [
    "Int8",
    "LayerCost",
    "QuantizeJob",
    "Quantized",
    "Timing",
    "calibration_batches",
    "layer_costs",
    "load_program",
    "post_training",
    "quantize_model",
    "quantize_run",
    "trimmed",
]
