"""Any module as a file, written and loaded again, and kept only if it computes what the module computes.

max_i  max|exported_i - model_i| / max|model_i|  <=  1e-4        i: an image's logits
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import repopt
from repopt.export.formats import BY_SUFFIX, Deployment, Format, Forward
from repopt.models import as_deployed
from repopt.models.calling import outputs_for
from repopt.plans.copying import copied
from repopt.plans.patterns import check_model, unwrapped
from repopt.quantize.onnx_files import Agreement, check_opset, compare, exporting, need


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, and how it compares with its origin.

    Attributes:
        path: the file, or the folder for safetensors.
        bytes: its size.
        shape: of an image that it takes.
        input: `normalized`, or `0..1` where the normalization is inside.
        origin: what it was compared with: the trained model, or for INT8 the INT8 program.
        agreement: how closely the two agree.
        batch_sizes: the ones that were tried.
        int8: how the INT8 program was made, for INT8.
        kernels: agreement of the integer kernels that ONNX Runtime makes of the file, for INT8.
    """

    path: Path
    bytes: int
    shape: tuple[int, ...]
    input: str
    origin: str
    agreement: Agreement
    batch_sizes: tuple[int, ...]
    int8: dict[str, Any] = field(default_factory=dict)
    kernels: Agreement | None = None


def export_model(
    model: nn.Module,
    path: str | Path,
    example: Tensor,
    *,
    opset: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Exported:
    """Writes any module as a file for other programs, and keeps it if it computes what the module computes.

    A model of repopt is written in its deploy form, another one as it is. The batch size is dynamic.

    Args:
        model: takes one tensor and returns one; it is left as it is, and written in eval mode.
        path: the file; its suffix says what it is: .onnx, .pt2 (torch.export) or .safetensors (the weights).
        example: a batch as the model takes it; what was written is compared with the model on it.
        opset: of ONNX, torch's default unless given.
        metadata: what a user of an .onnx or .pt2 file must know, such as the classes; text, or what JSON can hold.

    Raises:
        ValueError: there is such a file already, or it cannot be written so.
        RuntimeError: what was written does not agree with the model, and is removed.
        ImportError: a package of the extra `int8` is not installed.

    Example:
        >>> export_model(model, "net.onnx", torch.randn(8, 3, 224, 224))  # doctest: +SKIP
    """
    check_model(model, "export_model")
    model = unwrapped(model)
    target = Path(path)
    kind = BY_SUFFIX.get(target.suffix)
    if kind is None:
        raise ValueError(f"{str(path)!r} must end in {', '.join(BY_SUFFIX)}: its suffix says what is written")
    if not isinstance(example, Tensor) or example.ndim < 1 or not len(example):
        raise ValueError("the example must be a tensor that holds a batch as the model takes it")
    if opset is not None and target.suffix != ".onnx":
        raise ValueError(f"an opset is for ONNX, not for a {target.suffix} file: leave it out")
    check_opset(opset)
    need(*kind.needs)
    check_target(target, kind)
    module, images = as_deployed(model).cpu(), example.detach().cpu()
    module.eval()
    original = copied(model, training=False).cpu()
    found = outputs_for(original, images)
    if not isinstance(found, Tensor):
        raise ValueError(
            f"only a model that returns one tensor can be exported, and this returns a {type(found).__name__}"
        )
    alone = outputs_for(original, images[:1])
    if alone.ndim == 0 or alone.ndim != found.ndim:
        raise ValueError(
            f"for a batch of one image this {type(model).__name__} returns a tensor of shape {tuple(alone.shape)}, "
            "without the batch: let it squeeze the dimension that it means, as squeeze(1) does"
        )
    config = {"repopt": repopt.__version__, **(metadata or {})}
    deployment = Deployment(module=module, example=images[:1], config=config, opset=opset)
    batches = ((batch, batch) for batch in (images[:1], torch.cat([images, images])))
    agreement, sizes = kept(kind, deployment, target, original, batches)
    return Exported(
        path=target,
        bytes=target.stat().st_size,
        shape=tuple(images.shape[1:]),
        input="as the example",
        origin=kind.origin,
        agreement=agreement,
        batch_sizes=sizes,
    )


def kept(
    kind: Format, deployment: Deployment, target: Path, origin: Forward, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[Agreement, tuple[int, ...]]:
    """Writes a file or folder and keeps it if it agrees with its origin; how closely, and the batch sizes tried."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with kind.place(target) as unfinished:
        with exporting(f"this model as {target.suffix or kind.name}", deployment.example.dtype):
            written = kind.write(deployment, unfinished)
        agreement, sizes = compared(written, origin, batches)
        kind.check(agreement)
    return agreement, sizes


def check_target(target: Path, kind: Format) -> None:
    """Raises unless the format can be written there."""
    suffix = Path(kind.name).suffix
    if target.suffix != suffix and suffix:
        raise ValueError(f"{str(target)!r} must end in {suffix}: give such an --out")
    if target.exists():
        raise ValueError(f"{str(target)!r} already exists: remove it, or give another path (--out)")


@torch.no_grad()
def compared(
    exported: Forward, expected: Forward, batches: Iterator[tuple[Tensor, Tensor]]
) -> tuple[Agreement, tuple[int, ...]]:
    """The agreement, and the batch sizes that were tried."""
    # clones: a model may change its images in place
    logits = [(expected(normalized.clone()), exported(images.clone())) for images, normalized in batches]
    wanted, found = zip(*logits, strict=True)
    return compare(wanted, found), tuple(sorted({len(batch) for batch in wanted}))
