"""`repopt export`: a run's model for other programs, checked against the run before it is kept."""

from pathlib import Path

import tyro

from repopt.export import Exported, FormatName, export_run
from repopt.plans.wording import joined


def export(
    run: tyro.conf.Positional[Path],
    *,
    format: FormatName = "onnx",
    out: Path | None = None,
    data: str | None = None,
    images: int | None = None,
    normalize: bool = False,
    opset: int | None = None,
    int8: Path | None = None,
    symmetric: bool = False,
    best: bool = False,
    trust: bool = False,
) -> int:
    """Export a finished run's model, checked on real images before it is kept.

    Example: repopt export runs/b1 --format onnx --normalize

    Args:
        run: the run folder.
        format: onnx-int8 takes the program that `repopt quantize` left in the run, or calibrates one; safetensors is
            a folder that `repopt.create_model` loads.
        out: RUN/model.onnx, RUN/model-int8.onnx, RUN/model.pt2 or the folder RUN/export unless given.
        data: whose validation images are compared on; the run's own unless given.
        images: how many; 72, and 1000 for onnx-int8, unless given.
        normalize: put the normalization inside: the file then takes images from 0 to 1.
        opset: of ONNX, 18 to 23; torch's default unless given.
        int8: the folder of `repopt quantize` for onnx-int8; RUN/int8 unless given, and where there is none, the model
            is calibrated now.
        symmetric: INT8 activations without zero points, as TensorRT wants them; the model is calibrated now.
        best: export best.safetensors, the weights of the epoch with the highest validation accuracy.
        trust: load from the run what can execute code, a model's package.module:factory or a program.pt2 of an earlier
            version: trust the one who wrote it.
    """
    exported = export_run(
        run,
        format,
        out,
        data=data,
        images=images,
        normalize=normalize,
        opset=opset,
        int8=int8,
        best=best,
        symmetric=symmetric,
        trust=trust,
    )
    print("\n".join(_lines(exported)))
    return 0


def _lines(exported: Exported) -> list[str]:
    channels, height, width = exported.shape
    agreement = exported.agreement
    sizes = joined(map(str, exported.batch_sizes))
    gptq = " by GPTQ" if exported.int8.get("rounding") == "gptq" else ""
    zero_points = ", activations without zero points" if exported.int8.get("symmetric") else ""
    origin = "" if "int8_accuracy" in exported.int8 else ", calibrated now"
    made = exported.int8 and [
        f"INT8     by {exported.int8['method']}, per-{exported.int8['weights']} weights{gptq}{zero_points}{origin}"
    ]
    kernels = exported.kernels and [f"kernels  {exported.kernels.top1:.2%} the same by ONNX Runtime's integer kernels"]
    return [
        f"{exported.path}: {exported.bytes:,} bytes",
        *(made or []),
        f"takes    batch x {channels} x {height} x {width} float32, {exported.input}",
        f"checked  loaded again, on {agreement.images:,} images in batches of {sizes}",
        f"logits   at most {agreement.difference:.1e} from the {exported.origin}'s, relative",
        f"top-1    {agreement.top1:.2%} the same",
        *(kernels or []),
    ]
