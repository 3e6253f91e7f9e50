"""Folders of runs as the training loop writes them, with made-up numbers."""

import json
import math
import random
from pathlib import Path

RECIPE = {"epochs": 15, "batch_size": 64, "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 4e-5}
RECIPE |= {"label_smoothing": 0.0, "warmup_epochs": 1, "augment": "crop", "clip_norm": None, "precision": "fp32"}
STAGES = (1, 4, 6, 16, 1)  # the stem and the stages of nano


def write_run(
    folder: Path,
    method: str = "repopt",
    *,
    seed: int = 0,
    final: float = 97.0,
    epochs: int = 15,
    finished: bool = True,
    recipe: dict[str, object] | None = None,
    **about: object,
) -> Path:
    """Writes a run whose accuracy rises to `final`."""
    draw = random.Random(f"{method}{seed}")
    folder.mkdir(parents=True)
    final += draw.gauss(0, 0.4)
    setting = {"method": method, "model": "repopt_vgg_nano", "data": "digits", "data_digest": "5f3c" * 16}
    setting |= {"train_images": 1437, "val_images": 360, "image_size": 32, "seed": seed, "parameters": 350384}
    setting |= {"hardware": "Intel Xeon, 2 cores", "threads": "1", "python": "3.11.9", "torch": "2.13.0"}
    setting |= {"repopt": "0.1.0", "date": "2026-11-15", "precision": "fp32", "kernel": "authors"}
    _write(folder / "recipe.json", RECIPE | (recipe or {}))
    _write(folder / "run.json", setting | about)
    lines = []
    for epoch in range(1, epochs + 1):
        left = math.exp(-epoch / 2.5)
        record = {"epoch": epoch, "step": 22 * epoch, "lr": 0.1, "train_loss": 2.2 * left + 0.03 + draw.random() * 0.02}
        record |= {"train_accuracy": None, "images_per_second": 900.0, "seconds": 1.6}
        record |= {"val_loss": 2 * left, "val_accuracy": final - (final - 20) * left * (0.9 + 0.2 * draw.random())}
        lines.append(json.dumps(record))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if method == "search":
        records = [json.dumps({"epoch": epoch, "scales": _scales(epoch)}) for epoch in range(epochs + 1)]
        (folder / "scales.jsonl").write_text("\n".join(records) + "\n")
    if finished:
        seconds = {"data": 0.4, "compile": 2.1, "train": 1.6 * epochs, "eval": 1.9}
        found = {"val_accuracy": final, "best_val_accuracy": final + 0.3, "best_epoch": epochs - 1, "epochs": epochs}
        found |= {"images_per_second": 900.0 if method != "repvgg" else 560.0, "peak_memory_bytes": None}
        _write(folder / "summary.json", found | {"seconds": seconds, "steps": 22 * epochs})
    return folder


def add_int8(folder: Path) -> None:
    """Writes what a quantization of the run leaves, with a layer of its own."""
    layers = [{"layer": "stem.conv", "agreement_alone": 99.5, "snr_alone": 31.25, "snr": None}]
    record = {"method": "ptq", "calibrator": "histogram", "weights": "channel", "form": "deployed", "backend": "x86"}
    record |= {"float_accuracy": 97.0, "int8_accuracy": 96.5, "drop": 0.5, "float_bytes": 890_000}
    record |= {"int8_bytes": 810_000, "float_eager": 6821.4, "float_compiled": None, "int8": 11136.0, "layers": layers}
    (folder / "int8").mkdir()
    _write(folder / "int8" / "quantized.json", record)


def three_methods(root: Path) -> list[Path]:
    """3 methods x 3 seeds, and the search that gave the scales."""
    finals = {"sgd": 93.6, "repvgg": 96.6, "repopt": 97.4}
    runs = [write_run(root / f"{m}-{s}", m, seed=s, final=f) for m, f in finals.items() for s in range(3)]
    return [write_run(root / "search-0", "search", final=95.0), *runs]


def _scales(epoch: int) -> dict[str, dict[str, float]]:
    found = {}
    for stage, size in enumerate(STAGES):
        for index in range(size):
            start = math.sqrt(2 / index) if index else 1.0
            name = f"stage{stage}.{index}.conv" if stage else "stem.conv"
            found[name] = {"conv3x3": start * (1 - 0.01 * epoch), "conv1x1": start * (1 - 0.02 * epoch) + 0.05}
            if index:
                found[name]["identity"] = start * (1 + 0.005 * epoch)
    return found


def _write(path: Path, record: dict[str, object]) -> None:
    path.write_text(json.dumps(record, indent=2))
