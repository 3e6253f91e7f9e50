"""From a trained run to INT8 and what it costs: accuracy and size of both, and how fast they are on this CPU."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

from repopt.data import DataSet, EvalBatches
from repopt.device import allow_tf32, environment
from repopt.files import placing_folder
from repopt.models import RepGhostNet, RepOptGhostNet, RepVGG, deploy, plain_from_repvgg
from repopt.quantize.calibration import calibration_batches, trimmed
from repopt.quantize.onnx_files import need, write_onnx
from repopt.quantize.ort import OnnxModel, post_training_onnx
from repopt.quantize.pt2e import calibrated, load_program, quiet_torchao, save_program
from repopt.quantize.qat import EPOCHS, qat_recipe, quantization_aware
from repopt.quantize.sensitivity import LayerCost, layer_costs
from repopt.quantize.setting import Int8
from repopt.quantize.timing import WAYS, Timing, measure_speed
from repopt.train.distributed import World
from repopt.train.evaluation import evaluate
from repopt.train.recipe import Recipe
from repopt.train.runs import Trained, image_format, load_run, read_json, run_data, run_recipe

Method = Literal["ptq", "qat"]
# as it is deployed; with the norms and branches of training; a converted RepVGG that was given norms again
Form = Literal["auto", "deployed", "trained", "plain"]

FILES = {"x86": "program.pt2", "onnxruntime": "model.onnx"}
_IMAGES_FOR_LAYERS = 500


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """What became of a run.

    Attributes:
        file: the INT8 model.
        record: setting, accuracies, sizes and speeds, flat, as quantized.json has them.
        layers: by layer, where it was asked for.
        trouble: why there are no speeds, where they were asked for.
    """

    file: Path
    record: dict[str, Any]
    layers: list[LayerCost]
    trouble: str | None = None


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
    timing: Timing | None = None,
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
        out: a folder that is not there yet, RUN/int8 unless given.
        epochs: of QAT.
        lr: of QAT; a hundredth of the run's unless given.
        limit: keep that many images of the data.
        layers: measure every layer on its own too, for PTQ by torchao.
        timing: time float eager, float compiled and INT8 on this CPU so.
        device: where QAT and evaluation are computed; ONNX Runtime computes on the CPU.
        quiet: show no progress.
    """
    run, setting = Path(run), setting or Int8()
    out = run / "int8" if out is None else Path(out)
    where = torch.device("cpu") if device is None else device
    trained, recipe = load_run(run), run_recipe(run)
    if out.exists():
        raise ValueError(f"there is {str(out)!r} already: give another --out")
    if layers and (method, setting.backend) != ("ptq", "x86"):
        raise ValueError("layers are measured for PTQ by x86 alone: leave --layers out")
    if setting.trim and method == "qat":
        raise ValueError("QAT measures activations while it trains, on all images: leave --trim out")
    if timing and timing.size and setting.backend == "onnxruntime":
        raise ValueError("an ONNX file takes images of the run's own size: leave --speed-size out")
    _check_installed(setting)
    found = run_data(run, data, limit=limit)
    batches = calibration_batches(trained, found, setting.images)
    # the model's own normalization, whichever images these are
    found = replace(found, mean=tuple(trained.config["mean"]), std=tuple(trained.config["std"]))
    chosen = _form(trained.model, method) if form == "auto" else form
    model = shaped(trained.model, chosen, batches)
    if setting.trim:
        batches = trimmed(model, batches, setting.trim)
    training = qat_recipe(recipe, epochs=epochs, lr=lr) if method == "qat" else None
    allow_tf32(False)  # both models in float32
    tell = Console(stderr=True, quiet=quiet, style="dim", highlight=False).print
    tell(f"evaluating the float model on {len(found.val):,} images")
    before = _accuracy(trained.model, trained, found, recipe, where)
    record = {
        "run": str(run),
        "model": trained.config["model"],
        "trained_by": read_json(run, "run.json")["method"],
        "epochs": recipe.epochs,
        "kernel": recipe.kernel,
        "seed": recipe.seed,
        "method": method,
        "qat_epochs": training and training.epochs,
        "qat_lr": training and training.lr,
        **asdict(setting),
        "calibrator": None if training else setting.chosen,
        "form": chosen,
        "data": found.name,
        "val_images": len(found.val),
        "float_accuracy": before,
    }
    with placing_folder(out) as unfinished:
        file = unfinished / FILES[setting.backend]
        tell("training with the rounding in place" if training else f"calibrating on {sum(map(len, batches)):,} images")
        _write_int8(model, found, batches, setting, file, training=training, device=where, quiet=quiet)
        int8 = OnnxModel(file) if setting.backend == "onnxruntime" else load_program(file)
        here = torch.device("cpu") if setting.backend == "onnxruntime" else where
        tell("evaluating the INT8 model")
        after = _accuracy(int8, trained, found, recipe, here)
        record |= {"int8_accuracy": after, "drop": before - after}
        record |= {"float_bytes": _weight_bytes(deploy(trained.model)), "int8_bytes": file.stat().st_size}
        record |= environment(where)
        if layers:
            tell("measuring every layer")
        costs = _layers(model, trained, batches, found, setting) if layers else []
        if timing:
            tell("timing float and INT8")
        speeds, trouble = _speeds(run, file, trained, timing)
        record |= speeds
        _write_record(unfinished, record, costs)
    return Quantized(file=out / file.name, record=record, layers=costs, trouble=trouble)


def _write_int8(
    model: nn.Module,
    data: DataSet,
    batches: list[Tensor],
    setting: Int8,
    file: Path,
    *,
    training: Recipe | None,
    device: torch.device,
    quiet: bool,
) -> None:
    """Writes the INT8 model, trained on by a recipe or calibrated alone."""
    if training is None and setting.backend == "onnxruntime":
        post_training_onnx(model, batches, setting, file)
        return
    if training is None:
        program = calibrated(model.to(device), batches, setting).cpu()
    else:
        program = quantization_aware(model, data, training, setting, device=device, quiet=quiet)
    write = save_program if setting.backend == "x86" else write_onnx
    write(program, file, batches[0])


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
    branched = isinstance(model, RepVGG | RepGhostNet) and not isinstance(model, RepOptGhostNet)
    return "deployed" if method == "ptq" or branched else "trained"


def _accuracy(model: nn.Module, trained: Trained, data: DataSet, recipe: Recipe, device: torch.device) -> float:
    batches = EvalBatches(
        data.val, batch_size=recipe.eval_batch, device=device, workers=recipe.workers, **image_format(trained)
    )
    exact = replace(recipe, precision="fp32")
    score = evaluate(model.to(device), batches, exact, device=device, world=World())
    model.cpu()
    return score.accuracy


def _layers(model: nn.Module, trained: Trained, batches: list[Tensor], data: DataSet, setting: Int8) -> list[LayerCost]:
    images = calibration_batches(trained, replace(data, train=data.val), _IMAGES_FOR_LAYERS)
    return layer_costs(model.cpu(), batches, images, setting)


def _speeds(run: Path, file: Path, trained: Trained, timing: Timing | None) -> tuple[dict[str, Any], str | None]:
    """The speeds with how they were measured, and why there are none: that takes nothing from the INT8 model."""
    chosen = timing and replace(timing, size=timing.size or image_format(trained)["size"])
    found: dict[str, Any] = dict.fromkeys(("batch", "size", "threads")) if chosen is None else asdict(chosen)
    told = {f"speed_{name}": found[name] for name in ("batch", "size", "threads")}
    none = dict.fromkeys((*WAYS, "instructions"))
    if chosen is None:
        return {**told, "speed_hardware": None, **none}, None
    told["speed_hardware"] = environment(torch.device("cpu"))["hardware"]
    try:
        return {**told, **measure_speed(run, file, chosen)}, None
    except RuntimeError as error:
        return {**told, **none}, str(error)


def _write_record(folder: Path, record: dict[str, Any], costs: list[LayerCost]) -> None:
    layers = [
        {name: None if value in (math.inf, -math.inf) else value for name, value in asdict(cost).items()}
        for cost in costs  # JSON knows no infinity
    ]
    (folder / "quantized.json").write_text(json.dumps({**record, "layers": layers}, indent=2) + "\n")


def _weight_bytes(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def _check_installed(setting: Int8) -> None:
    """Now, rather than after minutes of training."""
    with quiet_torchao():
        if setting.backend == "onnxruntime":
            need("onnx", "onnxscript", "onnxruntime")
