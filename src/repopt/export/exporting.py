"""From a finished run to a file that other programs load, kept only if it computes what the run's model computes.

What is written is the deploy form, every norm folded. It is loaded again and compared with the trained model on real
images, one, seven and more at a time, and takes its place only if the two agree:

    max_i  max|exported_i - trained_i| / max|trained_i|  <=  1e-4        i: an image's logits

An INT8 file is compared with the INT8 program that it was written from, by the classes that the two choose: a last bit
that differs before a rounding moves a value to the next integer. It is run operator by operator, as it is written. The
integer kernels that ONNX Runtime makes of it round biases and add in another order: in a deep net that is another noise
of the same size. How often they choose the same class is measured and said, and nothing is asked of it.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import repopt
from repopt.data import DataSet, EvalBatches, ImageFiles, Images
from repopt.data.images import balanced
from repopt.export.formats import FORMATS, Format, Name, Normalized, Run, Subject
from repopt.models import deploy
from repopt.quantize import Int8, calibration_batches, post_training
from repopt.quantize.onnx_files import Agreement, check_opset, compare, need, onnx_runner
from repopt.quantize.pt2e import load_program
from repopt.quantize.quantizing import FILES
from repopt.train.runs import Trained, check_data, image_format, load_run, run_data, run_recipe

PROGRAM = FILES["x86"]
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how it compares with what it was written from.

    Attributes:
        path: the file, or the folder for safetensors.
        bytes: of it.
        shape: of an image that it takes.
        input: `normalized`, or `0..1` where the normalization is inside.
        origin: what it was compared with: the trained model, or for INT8 the INT8 program.
        agreement: with that.
        batch_sizes: that were tried.
        int8: how the INT8 program was made, for INT8.
        kernels: agreement of the integer kernels that ONNX Runtime makes of the file, for INT8.
    """

    path: Path
    bytes: int
    shape: tuple[int, int, int]
    input: str
    origin: str
    agreement: Agreement
    batch_sizes: tuple[int, ...]
    int8: dict[str, Any] = field(default_factory=dict)
    kernels: Agreement | None = None


def export_run(
    run: str | Path,
    format: Name,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    images: int | None = None,
    normalize: bool = False,
    opset: int | None = None,
    int8: str | Path | None = None,
) -> Exported:
    """Writes a finished run's model, once it is proven to be the model.

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

    Raises:
        ValueError: what is asked for cannot be; nothing is written.
        RuntimeError: what was written is not the model, and is removed.
        ImportError: a package of the extra `int8` is not installed.

    Example:
        >>> export_run("runs/b1", "onnx").path  # doctest: +SKIP
        PosixPath('runs/b1/model.onnx')
    """
    run = Path(run)
    kind = _checked(format, normalize=normalize, opset=opset, images=images)
    if int8 is not None and format != "onnx-int8":
        raise ValueError(f"a folder of INT8 is for the format onnx-int8, not {format}: leave --int8 out")
    target = run / kind.name if out is None else Path(out)
    _check_target(target, kind)
    trained = load_run(run)
    found = run_data(run, data)
    check_data(trained, found)
    part = found.val.take(balanced(found.val.labels, images or kind.images))
    expected: Run = trained.model
    module: nn.Module = deploy(trained.model)
    quantized: dict[str, Any] = {}
    if format == "onnx-int8":
        program, quantized = _int8(run, trained, found, int8)
        expected = module = program
    config = {
        **trained.config,
        **({"int8": quantized} if quantized else {}),
        "options": {**trained.config["options"], "deploy": True},
        "input": "0..1" if normalize else "normalized",
        "recipe": asdict(run_recipe(run)),
        "repopt": repopt.__version__,
    }
    if normalize:
        module = Normalized(module, config["mean"], config["std"])
    example = next(_batches(trained, part.take(torch.arange(1)), normalize=normalize))[0]
    subject = Subject(module=module, example=example, config=config, opset=opset)
    target.parent.mkdir(parents=True, exist_ok=True)
    with kind.place(target) as unfinished:
        exported = kind.write(subject, unfinished)
        agreement, sizes = _compared(exported, expected, _batches(trained, part, normalize=normalize))
        kind.check(agreement)
    kernels = None
    if format == "onnx-int8":
        kernels, _ = _compared(onnx_runner(target), expected, _batches(trained, part, normalize=normalize))
    return Exported(
        path=target,
        bytes=sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target])),
        shape=(example.shape[1], example.shape[2], example.shape[3]),
        input=config["input"],
        origin=kind.origin,
        agreement=agreement,
        batch_sizes=sizes,
        int8=quantized,
        kernels=kernels,
    )


def _checked(format: Name, *, normalize: bool, opset: int | None, images: int | None) -> Format:
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}; there is {', '.join(FORMATS)}")
    if images is not None and images < 1:
        raise ValueError(f"at least 1 image is compared on, not {images}")
    if opset is not None and not format.startswith("onnx"):
        raise ValueError(f"an opset is of ONNX, and the format is {format}: leave --opset out")
    if normalize and format == "safetensors":
        raise ValueError(
            "safetensors hold a model's own weights, no normalization before it: leave --normalize out, or export "
            "another format"
        )
    check_opset(opset)
    need(*FORMATS[format].needs)
    return FORMATS[format]


def _check_target(target: Path, kind: Format) -> None:
    suffix = Path(kind.name).suffix
    if target.suffix != suffix and suffix:
        raise ValueError(f"{str(target)!r} must end in {suffix}: give such an --out")
    if target.exists():
        raise ValueError(f"there is {str(target)!r} already: remove it, or give another --out")


def _int8(run: Path, trained: Trained, data: DataSet, folder: str | Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """The INT8 program that `repopt quantize` left, or one that is calibrated now, with what is to be said of it."""
    chosen = run / "int8" if folder is None else Path(folder)
    if folder is None and not chosen.exists():
        setting = Int8()
        batches = calibration_batches(trained, data, setting.images)
        return post_training(trained.model, batches, setting), {"method": "ptq", **asdict(setting)}
    if not (chosen / PROGRAM).exists():
        raise ValueError(
            f"{str(chosen)!r} holds no {PROGRAM}: name a folder that `repopt quantize --backend x86` wrote by --int8"
        )
    record = json.loads((chosen / "quantized.json").read_text())
    told = ("method", *(each.name for each in fields(Int8)), "form", "int8_accuracy")
    return load_program(chosen / PROGRAM), {name: record[name] for name in told}


def _batches(trained: Trained, part: Images | ImageFiles, *, normalize: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The images as the exported model and as the trained one takes them: 1, 7, and then up to 64 at a time."""
    own = image_format(trained)
    pixels = {**own, "mean": [0.0 for _ in own["mean"]], "std": [1.0 for _ in own["std"]]}
    ends = [end for end in (1, 8, *range(8 + _BATCH, len(part), _BATCH)) if end < len(part)]
    for first, end in itertools.pairwise([0, *ends, len(part)]):
        rows = part.take(torch.arange(first, end))
        normalized = _images(rows, own)
        yield _images(rows, pixels) if normalize else normalized, normalized


def _images(part: Images | ImageFiles, form: Mapping[str, Any]) -> Tensor:
    (batch,) = EvalBatches(part, batch_size=len(part), device=torch.device("cpu"), **form)
    return batch[0]


@torch.no_grad()
def _compared(
    exported: Run, expected: Run, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[Agreement, tuple[int, ...]]:
    """The agreement, and the batch sizes that were tried."""
    logits = [(expected(normalized), exported(images)) for images, normalized in batches]
    wanted, found = zip(*logits, strict=True)
    return compare(wanted, found), tuple(sorted({len(batch) for batch in wanted}))
