"""`repopt quantize`: a run's model in INT8, and what that costs."""

from pathlib import Path
from typing import Any

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from repopt.cli.output import Device, print_json
from repopt.device import chosen_device
from repopt.files import append_csv
from repopt.quantize import Int8, LayerCost, quantize_run
from repopt.quantize.qat import EPOCHS
from repopt.quantize.quantizing import Form, Method
from repopt.quantize.setting import Backend, Calibrator, Weights
from repopt.quantize.timing import WAYS, Timing
from repopt.train.runs import read_json

_WAYS = dict(zip(WAYS, ("float, eager", "float, compiled", "INT8"), strict=True))


def quantize(
    run: tyro.conf.Positional[Path],
    *,
    method: Method = "ptq",
    backend: Backend = "x86",
    weights: Weights = "channel",
    calibrator: Calibrator = "default",
    images: int = 1000,
    trim: float = 0.0,
    form: Form = "auto",
    data: str | None = None,
    out: Path | None = None,
    epochs: int = EPOCHS,
    lr: float | None = None,
    limit: int | None = None,
    layers: bool = False,
    speed: bool = True,
    speed_batch: int = 32,
    speed_size: int | None = None,
    threads: int = 1,
    device: Device = "auto",
    csv: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Quantize a finished run to INT8, and see what it costs.

    Example: repopt quantize runs/b0 --method ptq --layers

    Args:
        run: the run folder.
        method: ptq calibrates and is done; qat trains on for some epochs with the rounding in place.
        backend: x86 writes a program for torch.compile on a CPU, onnxruntime an ONNX file.
        weights: a step for each output channel, or one for each tensor.
        calibrator: how ptq chooses the range of an activation: x86 has histogram (its default) and minmax, onnxruntime
            minmax (its default), entropy and percentile.
        images: how many of the training set are measured.
        trim: share of these images, such as 0.01, that ptq leaves out again: those that drive a layer's input furthest
            beyond what the median image does.
        form: of the model that is quantized. auto: as it is deployed, and for qat as it was trained where that is one
            operator a layer. plain: a RepVGG converted to one operator a layer, with norms put back.
        data: the run's own unless given.
        out: a new folder, RUN/int8 unless given.
        epochs: of qat.
        lr: of qat; a hundredth of the run's unless given.
        limit: keep that many images, for a quick try.
        layers: measure every layer on its own too, all weights, all inputs, and the noise along the depth; for ptq by
            x86.
        speed: time float and INT8 on this machine's CPU.
        speed_batch: images a batch while timing.
        speed_size: side of the images while timing, the run's unless given.
        threads: of the CPU while timing.
        device: where qat and evaluation are computed; auto takes CUDA where there is one.
        csv: a CSV file to append the figures to.
        quiet: show no progress.
        json: print JSON instead of tables.
    """
    done = quantize_run(
        run,
        method=method,
        setting=Int8(backend=backend, weights=weights, calibrator=calibrator, images=images, trim=trim),
        form=form,
        data=data,
        out=out,
        epochs=epochs,
        lr=lr,
        limit=limit,
        layers=layers,
        timing=Timing(batch=speed_batch, size=speed_size, threads=threads) if speed else None,
        device=chosen_device(device),
        quiet=quiet,
    )
    if csv is not None:
        append_csv(csv, [done.record])
    if json:
        print_json(read_json(done.file.parent, "quantized.json"))
        return 0
    _print_accuracies(done.record)
    if done.trouble is not None:
        print(done.trouble)
    elif speed:
        _print_speeds(done.record)
    if done.layers:
        _print_layers(done.layers)
    print(f"written: {done.file}")
    return 0


def _print_accuracies(record: dict[str, Any]) -> None:
    how = record["method"].upper() + ("" if record["calibrator"] is None else f" ({record['calibrator']})")
    table = _table("", "accuracy", "drop", "MB")
    table.add_row("float", f"{record['float_accuracy']:.2f}", "", f"{record['float_bytes'] / 1e6:.2f}")
    row = (f"{record['int8_accuracy']:.2f}", f"{record['drop']:.2f}", f"{record['int8_bytes'] / 1e6:.2f}")
    table.add_row("INT8", *row)
    print(f"{record['model']}, {record['form']} form: {how} for {record['backend']}, per-{record['weights']} weights,")
    trim = f"its images trimmed by {record['trim']:.0%}, " if record["trim"] else ""
    print(f"{trim}on {record['val_images']:,} images of {record['data']}")
    Console().print(table)


def _print_speeds(record: dict[str, Any]) -> None:
    threads = "1 thread" if record["speed_threads"] == 1 else f"{record['speed_threads']} threads"
    table = _table("", "images/s", "ratio")
    for way, name in _WAYS.items():
        table.add_row(name, f"{record[way]:,.0f}", f"{record[way] / record['float_eager']:.2f}")
    print(f"on this CPU, {threads}, batches of {record['speed_batch']}, {record['speed_size']}x{record['speed_size']}")
    Console().print(table)
    if record["instructions"]:
        print("This CPU promises instructions that it lacks:")
        print(f"timed with ONEDNN_MAX_CPU_ISA={record['instructions']}.\n")


def _print_layers(costs: list[LayerCost]) -> None:
    table = _table("layer", "alone: same class, %", "alone: SNR, dB", "all: SNR, dB")
    for cost in costs:
        noise = "" if cost.snr is None else f"{cost.snr:.1f}"
        table.add_row(cost.layer, f"{cost.agreement_alone:.2f}", f"{cost.snr_alone:.1f}", noise)
    print("By layer. alone: the logits with this alone in INT8;")
    print("all: the layer's own output with all layers in INT8.")
    Console().print(table)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first)
    for column in numbers:
        table.add_column(column, justify="right")
    return table
