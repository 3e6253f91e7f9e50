"""ONNX Runtime's own static quantization, from a float ONNX file to one with QuantizeLinear and DequantizeLinear."""

from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from repopt.files import replacing
from repopt.plans.copying import copied
from repopt.quantize.onnx_files import IMAGES, exporting, need, onnx_runner, own_weights_, write_onnx
from repopt.quantize.pt2e import check_sizes
from repopt.quantize.quiet import quiet_logs
from repopt.quantize.rounding import rounded_by_gptq
from repopt.quantize.setting import Int8


def post_training_onnx(model: nn.Module, batches: Sequence[Tensor], setting: Int8, path: Path) -> None:
    """Writes the INT8 file of a trained model in the form that it is given in, calibrated and not trained any further.

    Args:
        model: the model; GPTQ computes where it is, the rest on the CPU.
        batches: images as the model takes them.
        setting: how.
        path: the file to write, in one move.
    """
    need("onnx", "onnxscript", "onnxruntime")
    check_sizes(batches, "for ONNX Runtime")
    if setting.rounding == "gptq":
        model = rounded_by_gptq(model, batches, setting.weights)
    import onnx_ir
    from onnxruntime import quantization as ort
    from onnxruntime.quantization.shape_inference import quant_pre_process

    methods = {"minmax": ort.CalibrationMethod.MinMax, "percentile": ort.CalibrationMethod.Percentile}
    # it recommends the pre-processing that was just done, and prints as it goes
    with quiet_logs(), redirect_stdout(StringIO()), ExitStack() as opened:
        unfinished = opened.enter_context(replacing(path))
        folder = opened.enter_context(TemporaryDirectory(dir=unfinished.parent))  # removed with it after an interrupt
        float_file, inferred, shared = (Path(folder, f"{name}.onnx") for name in ("float", "inferred", "shared"))
        with exporting(f"this {type(model).__name__} as ONNX", batches[0].dtype):
            write_onnx(copied(model, training=False).cpu(), float_file, batches[0])
        # torch writes shapes into the file; ONNX Runtime to 1.30 fails to infer those of an interpolation symbolically
        quant_pre_process(str(float_file), str(inferred), skip_symbolic_shape=True)
        ort.quantize_static(
            str(inferred),
            str(shared),
            _reader(batches if setting.chosen == "minmax" else _equal(batches)),
            quant_format=ort.QuantFormat.QDQ,
            per_channel=setting.weights == "channel",
            activation_type=ort.QuantType.QInt8 if setting.symmetric else ort.QuantType.QUInt8,
            weight_type=ort.QuantType.QInt8,
            calibrate_method=methods[setting.chosen],
            extra_options={"ActivationSymmetric": setting.symmetric},
        )
        quantized = onnx_ir.load(shared)
        own_weights_(quantized)
        onnx_ir.save(quantized, unfinished)


class OnnxModel(nn.Module):
    """An ONNX file as a module, so that what evaluates a model evaluates it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._run = onnx_runner(path)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)


def _equal(batches: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same images in batches of one size, such as ONNX Runtime's histograms take."""
    images = torch.cat(list(batches))
    return torch.split(images, max(size for size in range(1, len(batches[0]) + 1) if len(images) % size == 0))


def _reader(batches: Sequence[Tensor]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._left, None)
            return None if batch is None else {IMAGES: batch.numpy()}

    return Batches()
