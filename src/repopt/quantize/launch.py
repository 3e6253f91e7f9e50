"""From a trained run to INT8 and what it costs: accuracy and size of both, and how fast they are on this CPU."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from repopt.data import DataSet, EvalBatches
from repopt.models import RepVGG, deploy, plain_from_repvgg
from repopt.onnx_files import need, write_onnx
from repopt.quantize.calibration import calibration_batches, image_format
from repopt.quantize.ort import OnnxModel, post_training_onnx
from repopt.quantize.pt2e import calibrated, quiet_torchao, save_program
from repopt.quantize.qat import EPOCHS, qat_recipe, quantization_aware
from repopt.quantize.sensitivity import LayerCost, layer_costs
from repopt.quantize.setting import Int8
from repopt.quantize.timing import SPEEDS, measure_speed
from repopt.results import environment
from repopt.train.distributed import World
from repopt.train.evaluation import evaluate
from repopt.train.finished import Trained, load_run, read_json, run_data, run_recipe
from repopt.train.folder import replacing
from repopt.train.recipe import Recipe

Method = Literal["ptq", "qat"]
# as it is deployed; with the norms and branches of training; a converted RepVGG that was given norms again
Form = Literal["auto", "deployed", "trained", "plain"]

_FILES = {"x86": "program.pt2", "onnxruntime": "model.onnx"}
_IMAGES_FOR_LAYERS = 500


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What became of a run.

    Attributes:
        file: the INT8 model.
        record: setting, accuracies, sizes and speeds, flat, as quantized.json has them.
        layers: by layer, where it was asked for.
    """

    file: Path
    record: dict[str, Any]
    layers: list[LayerCost]


def quantize_run(
    run: str | Path,
    *,
    method: Method = "ptq",
    setting: Int8 | None = None,
    form: Form = "auto",
    data: str | None = None,
    out: str | Path | None = None,
    epochs: int = EPOCHS,
    lr: float | None = None,
    limit: int | None = None,
    layers: bool = False,
    speed: bool = True,
    speed_batch: int = 32,
    speed_size: int | None = None,
    threads: int = 1,
    device: torch.device | None = None,
    quiet: bool = False,
) -> Quantized:
    """Quantizes a finished run, evaluates both models on the same data, and writes the INT8 one.

    Args:
        run: the run folder.
        method: `ptq` after training, or `qat` with a short one.
        setting: backend, weights, calibrator.
        form: of the model that is quantized: deployed, or for QAT as it was trained, unless given.
        data: the run's own unless given.
        out: a folder, RUN/int8 unless given.
        epochs: of QAT.
        lr: of QAT; a hundredth of the run's unless given.
        limit: keep that many images of the data.
        layers: measure every layer on its own too.
        speed: time float eager, float compiled and INT8 on this CPU.
        speed_batch: images a batch while timing.
        speed_size: side of the images while timing, the run's unless given.
        threads: of the CPU while timing.
        device: where QAT and evaluation are computed; ONNX Runtime computes on the CPU.
        quiet: show no progress.
    """
    run, setting = Path(run), setting or Int8()
    trained = load_run(run)
    out = run / "int8" if out is None else Path(out)
    if out.exists():
        raise ValueError(f"there is {str(out)!r} already: give another --out")
    _check_installed(setting)
    recipe, found = run_recipe(run), run_data(run, data, limit=limit)
    batches = calibration_batches(trained, found, setting.images)
    chosen = _form(trained.model, method) if form == "auto" else form
    where = torch.device("cpu") if device is None else device
    model = shaped(trained.model, chosen, batches)
    before = _accuracy(trained.model, trained, found, recipe, where)
    retrain = qat_recipe(recipe, epochs=epochs, lr=lr)
    out.mkdir(parents=True)
    file = out / _FILES[setting.backend]
    if method == "qat":
        program, _ = quantization_aware(model, found, retrain, setting, out / "qat", device=where, quiet=quiet)
        write = save_program if setting.backend == "x86" else _write_onnx
        write(program, file, batches[0])
    elif setting.backend == "onnxruntime":
        post_training_onnx(model, batches, setting, file)
    else:
        program = calibrated(model.to(where), batches, setting)
        save_program(program.cpu(), file, batches[0])
    int8: nn.Module = program if setting.backend == "x86" else OnnxModel(file)
    after = _accuracy(int8, trained, found, recipe, where if setting.backend == "x86" else torch.device("cpu"))
    timing = {"speed_batch": speed_batch, "speed_size": speed_size or trained.config["size"], "speed_threads": threads}
    speeds = measure_speed(run, file, **timing) if speed else dict.fromkeys(SPEEDS)
    record = {
        "run": str(run),
        "model": trained.config["model"],
        "trained_by": read_json(run, "run.json")["method"],
        "epochs": recipe.epochs,
        "kernel": recipe.kernel,
        "seed": recipe.seed,
        "method": method,
        "qat_epochs": retrain.epochs if method == "qat" else None,
        "qat_lr": retrain.lr if method == "qat" else None,
        **dataclasses.asdict(setting),
        "calibrator": setting.chosen if method == "ptq" else None,
        "form": chosen,
        "data": found.name,
        "val_images": len(found.val),
        "float_accuracy": before,
        "int8_accuracy": after,
        "drop": before - after,
        "float_bytes": _weight_bytes(deploy(trained.model)),
        "int8_bytes": file.stat().st_size,
        **(timing if speed else dict.fromkeys(timing)),
        **speeds,
        **environment(where),
    }
    costs = _layers(trained, batches, found, setting) if layers else []
    with replacing(out / "quantized.json") as unfinished:
        content = {**record, "layers": [dataclasses.asdict(cost) for cost in costs]}
        unfinished.write_text(json.dumps(content, indent=2) + "\n")
    return Quantized(file=file, record=record, layers=costs)


def shaped(model: nn.Module, form: Form, images: list[Tensor]) -> nn.Module:
    """A trained model in the form that is to be quantized."""
    if form == "trained":
        return model
    if form == "plain":
        if not isinstance(model, RepVGG):
            raise ValueError(f"the form plain gives a converted RepVGG norms again; this is a {type(model).__name__}")
        return plain_from_repvgg(model, images)
    return deploy(model)


def _form(model: nn.Module, method: Method) -> Form:
    """QAT wants norms; a multi-branch model has none that are left after its conversion."""
    return "deployed" if method == "ptq" or isinstance(model, RepVGG) else "trained"


def _accuracy(model: nn.Module, trained: Trained, data: DataSet, recipe: Recipe, device: torch.device) -> float:
    batches = EvalBatches(data.val, batch_size=recipe.eval_batch, device=device, **image_format(trained))
    exact = dataclasses.replace(recipe, precision="fp32")
    score = evaluate(model.to(device), batches, exact, device=device, world=World())
    model.cpu()
    return score.accuracy


def _layers(trained: Trained, batches: list[Tensor], data: DataSet, setting: Int8) -> list[LayerCost]:
    part = dataclasses.replace(data, train=data.val)
    images = calibration_batches(trained, part, _IMAGES_FOR_LAYERS)
    return layer_costs(
        trained.model, batches, images, dataclasses.replace(setting, backend="x86", calibrator="default")
    )


def _write_onnx(program: nn.Module, path: Path, example: Tensor) -> None:
    write_onnx(program, path, example)


def _weight_bytes(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def _check_installed(setting: Int8) -> None:
    """Now, rather than after minutes of training."""
    with quiet_torchao():
        if setting.backend == "onnxruntime":
            need("onnx", "onnxscript", "onnxruntime")
