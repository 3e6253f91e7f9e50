"""From a finished run to a file that other programs load, kept only if it computes what the run's model computes.

The deploy form is written, with every norm folded. It is loaded again and compared with the trained model on real
images, one, seven and more at a time, and kept only if the two agree (`repopt.export.modules`).

An INT8 file is compared with its INT8 program by the classes that the two choose: a last bit that differs before a
rounding moves a value to the next integer. It is run operator by operator, as written. ONNX Runtime's integer kernels
round biases and add in another order, which in a deep net is noise of the same size: how often they choose the same
class is measured and reported, and no limit is set.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import repopt
from repopt.data import DataSet, EvalBatches, ImageFiles, Images
from repopt.data.images import balanced
from repopt.export.formats import FORMATS, Deployment, Format, FormatName, Normalized
from repopt.export.modules import Exported, check_target, compared, kept
from repopt.files import read_as, seal_of
from repopt.models import as_deployed
from repopt.models.references import is_reference
from repopt.plans.choices import instead_of
from repopt.plans.wording import first_line
from repopt.quantize import Int8, calibration_batches, post_training
from repopt.quantize.onnx_files import check_opset, need, onnx_runner
from repopt.quantize.programs import OLD_PROGRAM, PROGRAM, load_program
from repopt.train.records import Int8Record
from repopt.train.runs import Trained, check_data, image_format, load_run, run_data, run_recipe

_BATCH = 64


def export_run(
    run: str | Path,
    format: FormatName,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    images: int | None = None,
    normalize: bool = False,
    opset: int | None = None,
    int8: str | Path | None = None,
    symmetric: bool = False,
    best: bool = False,
    trust: bool = False,
) -> Exported:
    """Writes a finished run's model, and keeps it if it agrees with the model on real images.

    Args:
        run: the run folder.
        format: `onnx`, `onnx-int8`, `torch-export` or `safetensors`.
        out: the file, or the folder for safetensors; in the run folder unless given.
        data: whose validation images are compared on; the run's own unless given.
        images: how many; 72, and 1,000 for INT8, unless given.
        normalize: put the normalization inside, so that images from 0 to 1 are taken.
        opset: of ONNX, torch's default unless given.
        int8: the folder of `repopt quantize` whose program becomes INT8 ONNX; RUN/int8 unless given, and where there is
            none, the model is calibrated now.
        best: export the weights of the run's best epoch instead of the last one's; an INT8 program that
            `repopt quantize` left is of the last one.
        symmetric: INT8 activations without zero points, as TensorRT wants them: the model is calibrated now.
        trust: load from the folders what can execute code, a model's `package.module:factory` and a program.pt2 of an
            earlier version: trust the one who wrote it.

    Raises:
        ValueError: it cannot be exported so; nothing is written.
        RuntimeError: what was written does not agree with the model, and is removed.
        ImportError: a package of the extra `int8` is not installed.

    Example:
        >>> export_run("runs/b1", "onnx").path  # doctest: +SKIP
        PosixPath('runs/b1/model.onnx')
    """
    run = Path(run)
    kind = _checked(format, normalize=normalize, opset=opset, images=images, int8=int8, symmetric=symmetric)
    target = run / kind.name if out is None else Path(out)
    check_target(target, kind)
    source = _load(run, data, images or kind.images, normalize=normalize, best=best, trust=trust)
    left = int8 is not None or _program_in(run / "int8")
    if best and format == "onnx-int8" and left and not symmetric:
        raise ValueError("what `repopt quantize` left is INT8 of the last weights, not of the best: leave --best out")
    model, quantized = source.trained.model, dict[str, Any]()
    if format == "onnx-int8":
        model, quantized = _int8(run, source, int8, symmetric=symmetric, trust=trust)
    deployment = _deployment(run, source, model, quantized, opset)
    agreement, sizes = kept(kind, deployment, target, model, source.batches())
    return Exported(
        path=target,
        bytes=sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target])),
        shape=tuple(deployment.example.shape[1:]),
        input=deployment.config["input"],
        origin=kind.origin,
        agreement=agreement,
        batch_sizes=sizes,
        int8=quantized,
        kernels=compared(onnx_runner(target), model, source.batches())[0] if quantized else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A run's model, and the images that what is exported is compared on.

    Attributes:
        trained: the model.
        data: where the images come from.
        images: those compared on.
        normalize: whether the normalization goes inside what is exported.
    """

    trained: Trained
    data: DataSet
    images: Images | ImageFiles
    normalize: bool

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The images as the exported model and as the trained one takes them: 1, 7, and then up to 64 at a time."""
        own, count = image_format(self.trained), len(self.images)
        pixels = {**own, "mean": [0.0 for _ in own["mean"]], "std": [1.0 for _ in own["std"]]}
        ends = [end for end in (1, 8, *range(8 + _BATCH, count, _BATCH)) if end < count]
        for first, end in itertools.pairwise([0, *ends, count]):
            rows = self.images.take(torch.arange(first, end))
            normalized = _one_batch(rows, own)
            yield _one_batch(rows, pixels) if self.normalize else normalized, normalized


def _load(run: Path, data: str | None, images: int, *, normalize: bool, best: bool, trust: bool) -> _Source:
    trained, found = load_run(run, best=best, trust=trust), run_data(run, data)
    check_data(trained, found)
    chosen = found.val.take(balanced(found.val.labels, images))
    return _Source(trained=trained, data=found, images=chosen, normalize=normalize)


def _deployment(
    run: Path, source: _Source, model: nn.Module, quantized: dict[str, Any], opset: int | None
) -> Deployment:
    """The model as it is written: an INT8 program as it is, a float model in its deploy form."""
    trained = source.trained
    config = {
        **trained.config,
        **({"int8": quantized} if quantized else {}),
        "options": {**trained.config["options"], **({} if is_reference(trained.config["model"]) else {"deploy": True})},
        "input": "0..1" if source.normalize else "normalized",
        "size": image_format(trained)["size"],
        "recipe": asdict(run_recipe(run)),
        "repopt": repopt.__version__,
    }
    module = model if quantized else as_deployed(model)
    if source.normalize:
        module = Normalized(module, config["mean"], config["std"])
    example = next(source.batches())[0][:1]
    return Deployment(module=module, example=example, config=config, opset=opset)


def _checked(
    format: FormatName,
    *,
    normalize: bool,
    opset: int | None,
    images: int | None,
    int8: str | Path | None,
    symmetric: bool,
) -> Format:
    if not isinstance(format, str) or format not in FORMATS:
        raise ValueError(f"there is no format {format!r}: {instead_of(format, FORMATS)}")
    if images is not None and images < 1:
        raise ValueError(f"at least 1 image is compared on, not {images}")
    if opset is not None and not format.startswith("onnx"):
        raise ValueError(f"an opset is for ONNX, and the format is {format}: leave --opset out")
    if normalize and format == "safetensors":
        raise ValueError(
            "safetensors hold a model's own weights and no normalization before it: leave --normalize out, or export "
            "another format"
        )
    if int8 is not None and format != "onnx-int8":
        raise ValueError(f"a folder of INT8 is for the format onnx-int8, not {format}: leave --int8 out")
    if symmetric and format != "onnx-int8":
        raise ValueError(f"symmetric activations are for the format onnx-int8, not {format}: leave --symmetric out")
    if symmetric and int8 is not None:
        raise ValueError("for symmetric activations the model is calibrated anew: leave --int8 out")
    check_opset(opset)
    need(*FORMATS[format].needs)
    return FORMATS[format]


def _int8(
    run: Path, source: _Source, folder: str | Path | None, *, symmetric: bool, trust: bool
) -> tuple[nn.Module, dict[str, Any]]:
    """The INT8 program that `repopt quantize` left, or one that is calibrated now, with its setting for the user."""
    chosen = run / "int8" if folder is None else Path(folder)
    program = _program_in(chosen)
    if symmetric or (folder is None and program is None):
        setting = Int8(symmetric=symmetric)
        batches = calibration_batches(source.trained, source.data, setting.images)
        return post_training(source.trained.model, batches, setting), {"method": "ptq", **asdict(setting)}
    if program is None:
        raise ValueError(
            f"{str(chosen)!r} holds no {PROGRAM}: give --int8 a folder that `repopt quantize --backend x86` wrote"
        )
    read_as(chosen / "quantized.json", Int8Record)
    record = read_as(chosen / "quantized.json", dict[str, Any])
    seal = seal_of(run / "model.safetensors")
    if record.get("weights_seal", seal) != seal:  # older versions wrote none
        raise ValueError(
            f"{str(chosen)!r} holds INT8 of other weights than {str(run)!r} has now: quantize the run again, with "
            "another --out, and give that folder to --int8"
        )
    recorded = ("method", *(each.name for each in fields(Int8)), "form", "int8_accuracy")
    loaded = load_program(program, trust=trust)
    _check_fits(loaded, source, program)
    return loaded, {name: record[name] for name in recorded if name in record}


def _program_in(folder: Path) -> Path | None:
    """The program that `repopt quantize` left in a folder; None where it wrote a file for ONNX Runtime instead."""
    return next((folder / name for name in (PROGRAM, OLD_PROGRAM) if (folder / name).exists()), None)


@torch.no_grad()
def _check_fits(program: nn.Module, source: _Source, path: Path) -> None:
    """Raises unless a program takes the run's images and knows its classes."""
    _, images = next(source.batches())
    wanted = source.trained.model(images).shape
    try:
        found = program(images).shape
    except Exception as error:  # a program that fits its file may still be nonsense
        raise ValueError(
            f"{str(path)!r} does not take the run's images ({first_line(error)}): quantize the run again"
        ) from error
    if found != wanted:
        raise ValueError(f"{str(path)!r} is of another model, with {found[1:]} outputs: quantize the run again")


def _one_batch(images: Images | ImageFiles, form: Mapping[str, Any]) -> Tensor:
    (batch,) = EvalBatches(images, batch_size=len(images), device=torch.device("cpu"), **form)
    return batch[0]
