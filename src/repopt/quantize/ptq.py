"""INT8 after training: any module, calibrated on some images."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from repopt.models import as_deployed
from repopt.plans.patterns import check_model, unwrapped
from repopt.quantize.calibration import trimmed
from repopt.quantize.onnx_files import need
from repopt.quantize.ort import OnnxModel, post_training_onnx
from repopt.quantize.programs import PROGRAM, save_program
from repopt.quantize.pt2e import calibrated, check_batches
from repopt.quantize.quiet import quiet_logs
from repopt.quantize.setting import Int8

FILES = {"x86": PROGRAM, "onnxruntime": "model.onnx"}
_CPU = torch.device("cpu")


def quantize_model(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    path: str | Path | None = None,
    *,
    setting: Int8 | None = None,
) -> nn.Module:
    """Any trained module in INT8, calibrated on some images and not trained any further.

    A model of repopt is quantized in its deploy form, another one as it is; norms are folded on the way.

    Args:
        model: takes images and returns logits; it is left as it is.
        batches: images as the model takes them, such as a DataLoader; labels beside them are left out.
        path: a file for the INT8 model: .safetensors, which `repopt.quantize.load_program` reads, or .onnx for the
            backend onnxruntime.
        setting: backend, weights, calibrator, number of images; torchao's for x86 unless given.

    Returns:
        The INT8 model. torch.compile with inductor's freezing makes a program of x86 fast.

    Raises:
        ValueError: the path does not fit the backend, or there are no images.
        ImportError: a package of the extra `int8` is not installed.

    Example:
        >>> int8 = quantize_model(model, loader, "net.safetensors")  # doctest: +SKIP
    """
    setting, file = setting or Int8(), None if path is None else Path(path)
    if not isinstance(setting, Int8):
        raise TypeError(f"setting is an Int8(...), not {setting!r}")
    check_kernels(setting)
    suffix = Path(FILES[setting.backend]).suffix
    if (file is None and suffix == ".onnx") or (file is not None and file.suffix != suffix):
        raise ValueError(f"the backend {setting.backend} writes a {suffix} file: give such a path, not {path!r}")
    if isinstance(batches, Tensor):
        raise TypeError("batches must be a list of batches or a DataLoader, not one tensor: give [images]")
    check_installed(setting)
    check_model(model, "quantize_model")
    model = unwrapped(model)
    deployed = as_deployed(model).cpu()
    images = _some(batches, setting.images)
    measured = trimmed(deployed, images, setting.trim) if setting.trim else images
    return calibrate_to(deployed, measured, setting, file, _CPU)


def _some(batches: Iterable[Tensor | Sequence[Tensor]], count: int) -> list[Tensor]:
    """The first images, without labels."""
    found = list[Tensor]()
    for each in batches:
        images = each[0] if isinstance(each, list | tuple) else each
        if not isinstance(images, Tensor):
            raise TypeError(f"batches must hold tensors of images, not a {type(images).__name__}")
        found.append(images[:count].detach().cpu())
        count -= len(images)
        if count <= 0:
            break
    return found


def calibrate_to(
    model: nn.Module, batches: Sequence[Tensor], setting: Int8, file: Path | None, device: torch.device
) -> nn.Module:
    """The INT8 model of one in the form that is to be quantized; written to a file, where one is given."""
    found = check_batches(model, batches)
    if file is not None and not isinstance(found, Tensor):
        raise ValueError(
            f"an INT8 file is of a model that returns one tensor, and this returns a {type(found).__name__}: leave the "
            "path out for a program in memory"
        )
    if file is not None and setting.backend == "onnxruntime":
        file.parent.mkdir(parents=True, exist_ok=True)
        post_training_onnx(model.to(device) if setting.rounding == "gptq" else model, batches, setting, file)
        return OnnxModel(file)
    program = calibrated(model.to(device), batches, setting).cpu()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_program(program, file)
    return program


def check_kernels(setting: Int8) -> None:
    """Raises unless the backend has kernels for the setting."""
    if setting.symmetric and setting.backend == "x86":
        raise ValueError(
            "x86 kernels take activations with zero points alone: give --backend onnxruntime, in Python backend=..."
        )


def check_installed(setting: Int8) -> None:
    """Now, rather than after minutes of training."""
    with quiet_logs():
        need(*(("onnx", "onnxscript", "onnxruntime") if setting.backend == "onnxruntime" else ("torchao",)))
