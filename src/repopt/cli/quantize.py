"""`repopt quantize`: a run's model in INT8, and what that costs."""

from pathlib import Path
from typing import Any

import tyro

from repopt.cli.output import Device, table
from repopt.cli.screen import Screen
from repopt.device import chosen_device
from repopt.files import append_csv
from repopt.quantize import Int8, LayerCost, QuantizeJob, quantize_run
from repopt.quantize.qat import EPOCHS
from repopt.quantize.quantizing import Form, Int8Method, Quantized
from repopt.quantize.setting import Backend, Calibrator, Rounding, Weights
from repopt.quantize.timing import SPEEDS, Timing


def quantize(
    run: tyro.conf.Positional[Path],
    *,
    method: Int8Method = "ptq",
    backend: Backend = "x86",
    weights: Weights = "channel",
    calibrator: Calibrator = "default",
    images: int = 1000,
    trim: float = 0.0,
    symmetric: bool = False,
    rounding: Rounding = "nearest",
    form: Form = "auto",
    data: str | None = None,
    out: Path | None = None,
    epochs: int = EPOCHS,
    lr: float | None = None,
    multipliers: bool = False,
    limit: int | None = None,
    layers: bool = False,
    speed: bool = True,
    speed_batch: int = 32,
    speed_size: int | None = None,
    threads: int = 1,
    device: Device = "auto",
    trust: bool = False,
    csv: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Quantize a finished run to INT8, and see what it costs.

    Example: repopt quantize runs/b0 --method ptq --layers

    Args:
        run: the run folder.
        method: ptq only calibrates; qat trains on for some epochs, by the run's own optimizer, with the rounding in
            place.
        backend: x86 writes a program for torch.compile on a CPU, onnxruntime an ONNX file.
        weights: one scale for each output channel, or one for each tensor.
        calibrator: how ptq chooses the range of an activation: histogram (default) or minmax for x86; minmax (default)
            or percentile for onnxruntime.
        images: how many of the training set are measured.
        trim: share of these images, such as 0.01, that ptq leaves out: those that drive a layer's input furthest beyond
            the median image's.
        symmetric: int8 activations without zero points, as TensorRT wants them, instead of uint8 with one.
        rounding: of the weights, for ptq: each to the nearest step, or by gptq, which lets them make up for each
            other's errors and takes longer.
        form: of the model that is quantized. auto: as it is deployed, and for qat as it was trained where that is one
            operator a layer. plain: a RepVGG converted to one operator a layer, with norms put back.
        data: the run's own unless given.
        out: a new folder, RUN/int8 unless given.
        epochs: of qat.
        lr: of qat; a hundredth of the run's unless given.
        multipliers: of qat, for a run of repopt: multiply gradients as its training did.
        limit: keep that many images, for a quick try.
        layers: measure every layer on its own too, all weights, all inputs, and the noise along the depth; for ptq by
            x86.
        speed: time float and INT8 on this machine's CPU.
        speed_batch: images per batch while timing.
        speed_size: side of the images while timing, the run's unless given.
        threads: of the CPU while timing.
        device: where qat, gptq and evaluation are computed; auto is CUDA if there is one.
        trust: load from the run what can execute code, a model's package.module:factory: trust the one who wrote it.
        csv: a CSV file to append the figures to.
        quiet: show no progress.
        json: print JSON instead of tables.
    """
    job = QuantizeJob(
        method=method,
        setting=Int8(
            backend=backend,
            weights=weights,
            calibrator=calibrator,
            images=images,
            trim=trim,
            symmetric=symmetric,
            rounding=rounding,
        ),
        form=form,
        data=data,
        limit=limit,
        epochs=epochs,
        lr=lr,
        multipliers=multipliers,
        layers=layers,
        timing=Timing(batch=speed_batch, size=speed_size, threads=threads) if speed else None,
    )
    done = quantize_run(run, job, out=out, device=chosen_device(device), quiet=quiet, trust=trust)
    try:
        if json:
            print(done.file.with_name("quantized.json").read_text(), end="")
        else:
            _print(done, speed=speed)
    finally:  # also where nobody reads to the end
        if csv is not None:
            append_csv(csv, [done.record])
    return 0


def _print(done: Quantized, *, speed: bool) -> None:
    _print_accuracies(done.record)
    if done.trouble is not None:
        print(done.trouble)
    elif speed:
        _print_speeds(done.record)
    if done.layers:
        _print_layers(done.layers)
    print(f"written: {done.file}")


def _print_accuracies(record: dict[str, Any]) -> None:
    how = record["method"].upper() + ("" if record["calibrator"] is None else f" ({record['calibrator']})")
    shown = table("", "accuracy", "drop", "MB")
    shown.add_row("float", f"{record['float_accuracy']:.2f}", "", f"{record['float_bytes'] / 1e6:.2f}")
    row = (f"{record['int8_accuracy']:.2f}", f"{record['drop']:.2f}", f"{record['int8_bytes'] / 1e6:.2f}")
    shown.add_row("INT8", *row)
    weights = f"per-{record['weights']} weights{' by GPTQ' if record['rounding'] == 'gptq' else ''}"
    print(f"{record['model']}, {record['form']} form: {how} for {record['backend']}, {weights},")
    if record["symmetric"]:
        print("activations without zero points,")
    trim = f"its images trimmed by {100 * record['trim']:.3g}%, " if record["trim"] else ""
    print(f"{trim}on {record['val_images']:,} images of {record['data']}")
    Screen().print(shown)


def _print_speeds(record: dict[str, Any]) -> None:
    threads = "1 thread" if record["speed_threads"] == 1 else f"{record['speed_threads']} threads"
    shown = table("", "images/s", "ratio")
    for column, name in zip(SPEEDS, ("float, eager", "float, compiled", "INT8"), strict=True):
        shown.add_row(name, f"{record[column]:,.0f}", f"{record[column] / record['float_eager']:.2f}")
    print(f"on this CPU, {threads}, batches of {record['speed_batch']}, {record['speed_size']}x{record['speed_size']}")
    Screen().print(shown)
    if record["instructions"]:
        print("This CPU reports instructions that it lacks:")
        print(f"timed with ONEDNN_MAX_CPU_ISA={record['instructions']}.\n")


def _print_layers(costs: list[LayerCost]) -> None:
    shown = table("layer", "alone: same class, %", "alone: SNR, dB", "all: SNR, dB")
    for cost in costs:
        noise = "" if cost.snr is None else f"{cost.snr:.1f}"
        shown.add_row(cost.layer, f"{cost.agreement_alone:.2f}", f"{cost.snr_alone:.1f}", noise)
    print("By layer. alone: the logits with this alone in INT8;")
    print("all: the layer's own output with all layers in INT8.")
    Screen().print(shown)
