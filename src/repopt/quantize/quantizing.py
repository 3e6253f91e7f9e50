"""From a trained run to INT8 and its cost: accuracy and size of both models, and how fast they are on this CPU."""

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from torch import Tensor, nn

from repopt.data import DataSet, EvalBatches
from repopt.device import arithmetic, environment
from repopt.files import placing_folder, read_as, seal_of, write_json
from repopt.models import RepGhostNet, RepOptGhostNet, RepVGG, as_deployed, plain_from_repvgg
from repopt.plans.choices import check_choice
from repopt.plans.planning import Plan, plan
from repopt.quantize.calibration import calibration_batches, trimmed
from repopt.quantize.onnx_files import write_onnx
from repopt.quantize.ort import OnnxModel
from repopt.quantize.programs import check_holds, load_program, save_program
from repopt.quantize.pt2e import captured_graph
from repopt.quantize.ptq import FILES, calibrate_to, check_installed, check_kernels
from repopt.quantize.qat import EPOCHS, qat_recipe, quantization_aware
from repopt.quantize.rounding import check_steps
from repopt.quantize.sensitivity import LayerCost, layer_costs
from repopt.quantize.setting import Int8, check_nearest
from repopt.quantize.timing import SPEEDS, Timing, measure_speed
from repopt.train.branch_choice import as_branches, chosen
from repopt.train.distributed import World
from repopt.train.recipe import Recipe
from repopt.train.records import RunSummary, read_info
from repopt.train.runs import Trained, image_format, load_run, run_data, run_recipe
from repopt.train.step import evaluate

Int8Method = Literal["ptq", "qat"]
# as it is deployed; with the norms and branches of training; a converted RepVGG with norms put back
Form = Literal["auto", "deployed", "trained", "plain"]

_IMAGES_FOR_LAYERS = 500
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class QuantizeJob:
    """How a run is quantized, and what is measured.

    Attributes:
        method: `ptq` after training, or `qat` with a short training.
        setting: backend, weights, calibrator.
        form: of the model that is quantized; `auto` is deployed, or for QAT as it was trained.
        data: the run's own unless given.
        limit: keep that many images of the data.
        epochs: of QAT.
        lr: of QAT; a hundredth of the run's unless given.
        multipliers: of QAT: multiply gradients as the run's own training did.
        layers: measure every layer on its own too, for PTQ by x86.
        timing: how to time float eager, float compiled and INT8 on this CPU; not at all unless given.
    """

    method: Int8Method = "ptq"
    setting: Int8 = field(default_factory=Int8)
    form: Form = "auto"
    data: str | None = None
    limit: int | None = None
    epochs: int = EPOCHS
    lr: float | None = None
    multipliers: bool = False
    layers: bool = False
    timing: Timing | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Int8Method))
        check_choice("form", self.form, get_args(Form))
        if not isinstance(self.setting, Int8):
            raise TypeError(f"setting is an Int8(...), not {self.setting!r}")
        check_kernels(self.setting)
        if self.epochs < 1 or not (self.lr is None or self.lr > 0):
            raise ValueError(f"QAT needs an epoch or more and an lr above 0, not {self.epochs} and {self.lr}")
        if self.multipliers and self.method != "qat":
            raise ValueError("multipliers are for the training of QAT: give --method qat as well")
        if self.layers and (self.method, self.setting.backend) != ("ptq", "x86"):
            raise ValueError("layers are measured for PTQ by x86 alone: leave --layers out")
        if self.setting.trim and self.method == "qat":
            raise ValueError("QAT measures activations while it trains, on all images: leave --trim out")
        if self.method == "qat":
            check_nearest(self.setting, "QAT rounds to the nearest while it trains")
        if self.layers:
            check_nearest(self.setting, "layers are measured with weights rounded to the nearest")
        if self.timing and self.timing.size and self.setting.backend == "onnxruntime":
            raise ValueError("an ONNX file takes images of the run's own size: leave --speed-size out")


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """The result of a quantization.

    Attributes:
        file: the INT8 model.
        record: setting, accuracies, sizes and speeds, flat, as in quantized.json.
        layers: the cost of each layer, where it was asked for.
        trouble: why there are no speeds, where they were asked for.
    """

    file: Path
    record: dict[str, Any]
    layers: list[LayerCost]
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Everything that is loaded before anything is computed.

    Attributes:
        trained: the float model.
        recipe: the run's own.
        data: normalized as the model wants it.
        batches: to calibrate on.
        form: the one that is quantized.
        model: in that form.
        training: the recipe of QAT, None for PTQ.
        plan: of the model, where QAT is to multiply its gradients.
    """

    trained: Trained
    recipe: Recipe
    data: DataSet
    batches: list[Tensor]
    form: Form
    model: nn.Module
    training: Recipe | None
    plan: Plan | None

    def accuracy(self, model: nn.Module, device: torch.device) -> float:
        """The accuracy of the float model or the INT8 one, in float32 outside of it."""
        recipe = replace(self.recipe, precision="fp32")
        options = {"batch_size": recipe.eval_batch, "workers": recipe.workers, **image_format(self.trained)}
        batches = EvalBatches(self.data.val, device=device, **options)
        score = evaluate(model.to(device), batches, recipe, device=device, world=World())
        model.cpu()
        return score.accuracy


@arithmetic(tf32=False)  # both models in float32
def quantize_run(
    run: str | Path,
    job: QuantizeJob | None = None,
    *,
    out: str | Path | None = None,
    device: torch.device | None = None,
    quiet: bool = False,
    trust: bool = False,
    loaded: DataSet | None = None,
) -> Quantized:
    """Quantizes a finished run, evaluates both models on the same data, and writes the INT8 one.

    Args:
        run: the run folder.
        job: how; PTQ for x86 unless given.
        out: a folder that does not exist yet, RUN/int8 unless given.
        device: where QAT, GPTQ and evaluation are computed; ONNX Runtime computes on the CPU.
        quiet: show no progress.
        trust: as `load_run` takes it.
        loaded: the data, where they are loaded already.
    """
    run, job, device = Path(run), job or QuantizeJob(), device or _CPU
    out = run / "int8" if out is None else Path(out)
    if out.exists():
        raise ValueError(f"{str(out)!r} already exists: give another --out")
    prepared = _prepare(run, job, loaded, trust=trust)
    say = Console(stderr=True, quiet=quiet, style="dim", highlight=False).print
    say(f"evaluating the float model on {len(prepared.data.val):,} images")
    before = prepared.accuracy(prepared.trained.model, device)
    record = {**_about(run, job, prepared), "float_accuracy": before}
    with placing_folder(out) as unfinished:
        file = unfinished / FILES[job.setting.backend]
        images = sum(map(len, prepared.batches))
        say("training with the rounding in place" if prepared.training else f"calibrating on {images:,} images")
        _write_int8(prepared, job.setting, file, device=device, quiet=quiet)
        say("evaluating the INT8 model")
        after = _int8_accuracy(prepared, file, device)
        record |= {"int8_accuracy": after, "drop": before - after}
        record |= {"float_bytes": _weight_bytes(as_deployed(prepared.trained.model)), "int8_bytes": file.stat().st_size}
        record |= environment(device)
        if job.layers:
            say("measuring every layer")
        costs = _layers(prepared, job.setting) if job.layers else []
        if job.timing:
            say("timing float and INT8")
        speeds, trouble = _speeds(run, file, prepared.trained, job.timing, trust=trust)
        record |= speeds
        _write_record(unfinished, record, costs)
    return Quantized(file=out / file.name, record=record, layers=costs, trouble=trouble)


def _prepare(run: Path, job: QuantizeJob, loaded: DataSet | None, *, trust: bool) -> _Prepared:
    trained, recipe = load_run(run, trust=trust), run_recipe(run)
    check_installed(job.setting)
    data = loaded or run_data(run, job.data, limit=job.limit)
    batches = calibration_batches(trained, data, job.setting.images)
    form = _auto_form(trained.model, job.method) if job.form == "auto" else job.form
    model = shaped(trained.model, form, batches)
    # now, rather than after an evaluation or a training
    if job.setting.rounding == "gptq":
        check_steps(model, job.setting.weights)
    if job.setting.backend == "x86":
        check_holds(captured_graph(model, batches[0]))
    return _Prepared(
        trained=trained,
        recipe=recipe,
        data=replace(data, mean=tuple(trained.config["mean"]), std=tuple(trained.config["std"])),
        batches=trimmed(model, batches, job.setting.trim) if job.setting.trim else batches,
        form=form,
        model=model,
        training=qat_recipe(recipe, epochs=job.epochs, lr=job.lr) if job.method == "qat" else None,
        plan=_plan_of(run, recipe, model, form) if job.multipliers else None,
    )


def _plan_of(run: Path, recipe: Recipe, model: nn.Module, form: Form) -> Plan:
    """The plan that a run was trained with, on its model."""
    info, scales = read_info(run), run / "scales.safetensors"
    if info.method != "repopt" or form != "trained" or not scales.exists():
        raise ValueError(
            f"{str(run)!r} is a run of {info.method}, to be quantized in its {form} form: multipliers are for a run of "
            "repopt, in the form that it was trained in"
        )
    if recipe.rules == "initialization":
        raise ValueError(
            f"{str(run)!r} was trained without multipliers, by its recipe's rules: leave --multipliers out"
        )
    return plan(model, as_branches(chosen(info.branches, model)), scales=scales)


def _about(run: Path, job: QuantizeJob, prepared: _Prepared) -> dict[str, Any]:
    recipe, training, summary = prepared.recipe, prepared.training, run / "summary.json"
    return {
        "run": str(run),
        "weights_seal": seal_of(run / "model.safetensors"),
        "model": prepared.trained.config["model"],
        "trained_by": read_info(run).method,
        "epochs": read_as(summary, RunSummary).epochs if summary.exists() else recipe.epochs,
        "kernel": recipe.kernel,
        "seed": recipe.seed,
        "method": job.method,
        "qat_epochs": training and training.epochs,
        "qat_lr": training and training.lr,
        "multipliers": job.multipliers if training else None,
        **asdict(job.setting),
        "images": min(job.setting.images, len(prepared.data.train)),
        "calibrator": None if training else job.setting.chosen,
        "form": prepared.form,
        "data": prepared.data.name,
        "val_images": len(prepared.data.val),
    }


def _write_int8(prepared: _Prepared, setting: Int8, file: Path, *, device: torch.device, quiet: bool) -> None:
    """Writes the INT8 model: calibrated alone, or trained on by a recipe."""
    model, batches, training = prepared.model, prepared.batches, prepared.training
    if training is None:
        calibrate_to(model, batches, setting, file, device)
        return
    how: dict[str, Any] = {"device": device, "plan": prepared.plan, "quiet": quiet}
    program = quantization_aware(model, prepared.data, training, setting, **how)
    if setting.backend == "x86":
        save_program(program, file)
    else:
        write_onnx(program, file, batches[0])


def _int8_accuracy(prepared: _Prepared, file: Path, device: torch.device) -> float:
    """The accuracy of the model as it was written."""
    if file.suffix == ".onnx":
        return prepared.accuracy(OnnxModel(file), _CPU)
    return prepared.accuracy(load_program(file), device)


def shaped(model: nn.Module, form: Form, images: list[Tensor]) -> nn.Module:
    """A trained model in the form that is to be quantized."""
    if form == "trained":
        return model
    if form == "plain":
        if not isinstance(model, RepVGG):
            raise ValueError(f"the form plain gives a converted RepVGG norms again; this is a {type(model).__name__}")
        return plain_from_repvgg(model, images)
    return as_deployed(model)


def _auto_form(model: nn.Module, method: Int8Method) -> Form:
    """QAT needs norms, and a multi-branch model has none left after its conversion."""
    branched = isinstance(model, RepVGG | RepGhostNet) and not isinstance(model, RepOptGhostNet)
    return "deployed" if method == "ptq" or branched else "trained"


def _layers(prepared: _Prepared, setting: Int8) -> list[LayerCost]:
    on_validation = replace(prepared.data, train=prepared.data.val)
    images = calibration_batches(prepared.trained, on_validation, _IMAGES_FOR_LAYERS)
    return layer_costs(prepared.model.cpu(), prepared.batches, images, setting)


def _speeds(
    run: Path, file: Path, trained: Trained, timing: Timing | None, *, trust: bool
) -> tuple[dict[str, Any], str | None]:
    """The speeds and how they were measured, or why they could not be; the INT8 model is kept either way."""
    columns = ("batch", "size", "threads")
    none = dict.fromkeys((*SPEEDS, "instructions"))
    if timing is None:
        return {**dict.fromkeys(f"speed_{name}" for name in columns), "speed_hardware": None, **none}, None
    chosen = replace(timing, size=timing.size or image_format(trained)["size"])
    measured_on = {f"speed_{name}": getattr(chosen, name) for name in columns}
    measured_on["speed_hardware"] = environment(_CPU)["hardware"]
    try:
        return {**measured_on, **measure_speed(run, file, chosen, trust=trust)}, None
    except RuntimeError as error:
        return {**measured_on, **none}, str(error)


def _write_record(folder: Path, record: dict[str, Any], costs: list[LayerCost]) -> None:
    layers = [
        {name: None if value in (math.inf, -math.inf) else value for name, value in asdict(cost).items()}
        for cost in costs  # JSON has no infinity
    ]
    write_json(folder / "quantized.json", {**record, "layers": layers})


def _weight_bytes(model: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
