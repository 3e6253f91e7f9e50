"""Table 7: backbones pretrained by RepOpt and by RepVGG, fine-tuned for segmentation and detection.

An arm is a backbone and what fine-tunes it: a plain optimizer, or the RepOptimizer that it was pretrained with (kept).
"""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paper.dense_data import Split, placed
from paper.dense_tasks import DenseTask, Detection, Segmentation, cost, fine_tuned
from paper.jobs import Lines, Scope, Training
from paper.tables import Table
from paper.view import SEEDS, Column, accuracy, minus, number, papers, text
from paper.workshop import ENVIRONMENT, Workshop
from repopt.device import environment
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import shipped
from repopt.train.methods import counterpart
from repopt.train.records import read_json

_LONGER = "detection, twice as long"  # with one seed: whether more epochs, or learning rates beyond, would help
_DETECTION = Detection()
_TASKS: dict[str, DenseTask] = {
    "segmentation": Segmentation(),
    "detection": _DETECTION,
    _LONGER: replace(_DETECTION, recipe=replace(_DETECTION.recipe, epochs=2 * _DETECTION.recipe.epochs)),
}
_SMALL: dict[str, DenseTask] = {
    "segmentation": Segmentation(size=(64, 128), width=16, calibrated=8),
    "detection": Detection(size=64, width=32),
}
# most multipliers of deep layers are far below 1, so what keeps them may want a higher rate
_RATES = {"segmentation": (0.02, 0.06, 0.2), "detection": (0.01, 0.02), _LONGER: (0.01, 0.02)}
# one more where the lowest or the highest of these was the best
_BEYOND = {
    **{("segmentation", "RepVGG"): 0.6, ("segmentation", "RepOpt, plain"): 0.006},
    **{(_LONGER, "RepVGG"): 0.04, (_LONGER, "RepOpt, plain"): 0.005, (_LONGER, "RepOpt, kept"): 0.005},
}
_DATA = {"segmentation": "cityscapes", "detection": "coco", _LONGER: "coco"}
_KEPT, _SCRATCH = "RepOpt, kept", "RepOpt, from scratch"
# {arm: how its backbone is pretrained}, each at the better learning rate of the table `where`
_ARMS: dict[str, dict[str, Any]] = {
    "RepVGG": {"method": "repvgg", "fields": {"lr": 0.2}},
    "RepOpt, plain": {"scales": "searched"},
    "QARepVGG": {"method": "qarepvgg"},
    "Dirac": {"method": "dirac"},
    _SCRATCH: {"scales": "searched"},
    _KEPT: {"scales": "searched"},
}
_DETECTORS = ("RepVGG", "RepOpt, plain", _KEPT)
_COMPARED = {"segmentation": tuple(_ARMS), "detection": _DETECTORS, _LONGER: _DETECTORS}
_PRETRAINED = {"epochs": 15, "eval_every": 15, "warmup_epochs": 1}
_PAPER = {  # which does not say how RepOpt's backbones were fine-tuned
    ("segmentation", "RepVGG"): 79.15,
    **{("segmentation", arm): 79.36 for arm in ("RepOpt, plain", _KEPT)},
    ("detection", "RepVGG"): 43.60,
    **{("detection", arm): 43.50 for arm in ("RepOpt, plain", _KEPT)},
}
_QUICK = ("RepVGG", _KEPT)
_CHOOSES = "0"  # the seed that chooses learning rates, and is not shown


def _trainings() -> Iterator[Training]:
    """The costs of all arms first, while no other process has begun to train; then arm by arm, so that few wait."""
    for task, arms in _COMPARED.items():
        for arm in arms if task != _LONGER else ():
            yield _training("cost", task, arm, None, measure=_cost, data="")
    for task, arms in _COMPARED.items():
        for place, rate in enumerate(_RATES[task]):
            for arm in arms:
                quick = place == 0 and arm in _QUICK and task != _LONGER
                yield _training("accuracy", task, arm, rate, measure=_accuracy, in_quick=quick)
    for (task, arm), rate in _BEYOND.items():
        yield _training("accuracy", task, arm, rate, measure=_accuracy, in_quick=False)


def _training(what: str, task: str, arm: str, rate: float | None, **how: Any) -> Training:
    pretrained = {**_ARMS[arm], "fields": {**_PRETRAINED, **_ARMS[arm].get("fields", {})}}
    key = {"what": what, "task": task, "arm": arm, "rate": rate}
    about = {"model": "b0", "data": "mini64", "fine_tuned_on": _DATA[task], "in_quick": arm in _QUICK}
    how |= {"one_seed": task == _LONGER}
    return Training(key=key, **{**about, **pretrained, **how})


def _accuracy(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """Pretrains the backbone, unless another row did, and fine-tunes it."""
    task, device, weights, found = _task(training, scope), workshop.chosen_device, None, dict[str, Any]()
    recipe = scope.adapt(replace(task.recipe, lr=training.key["rate"]), seed)
    if training.key["arm"] != _SCRATCH:
        run = training.run(scope, seed, workshop, weights=True)
        weights, config = run / "model.safetensors", read_json(run, "config.json")
        task = replace(task, mean=tuple(config["mean"]), std=tuple(config["std"]))
        found["pretrained_accuracy"] = read_json(run, "summary.json")["val_accuracy"]
    with workshop.sharing():
        train, val = (_data(training, scope, split, device) for split in ("train", "val"))
        network, planned = _network(task, training, scope, weights, seed, device)
        network, found["loss"] = fine_tuned(task, network, planned, train, recipe)
        found |= task.score(network, val)
        if isinstance(task, Segmentation) and (str(seed) != _CHOOSES or scope.quick):
            found |= task.int8_score(network, train, val)
    size = "x".join(map(str, train.pixels.shape[2:]))
    found |= {"outcome": "finished", "train_images": len(train.pixels), "val_images": len(val.pixels), "size": size}
    settings = {column: getattr(recipe, column) for column in ("epochs", "batch_size", "lr", "precision")}
    return [{**found, **settings, "libraries": _libraries(), **environment(device)}]


def _cost(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """What training steps on noise cost, with the device alone."""
    task, device = _task(training, scope), workshop.chosen_device
    recipe = scope.adapt(replace(task.recipe, lr=_RATES[training.key["task"]][0]), seed)
    gc.collect()  # the networks of earlier rows, whose memory would count
    with workshop.alone():
        data = placed(task.made_up(4 * recipe.batch_size), device)
        network, planned = _network(task, training, scope, None, seed, device)
        found = cost(task, network, planned, data, recipe, timed=1 if scope.quick else 100)
    settings = {column: getattr(recipe, column) for column in ("batch_size", "precision")}
    return [{**found, **settings, "libraries": _libraries(), **environment(device)}]


def _network(
    task: DenseTask, training: Training, scope: Scope, weights: Path | None, seed: int, device: torch.device
) -> tuple[nn.Module, Plan | None]:
    """The network, and the plan by which it is fine-tuned where the RepOptimizer is kept."""
    torch.manual_seed(seed)
    model, planned = scope.model(training.model), None
    network = task.network(counterpart(model, "repopt" if training.scales else training.method), weights)
    if training.key["arm"] in (_KEPT, _SCRATCH):
        planned = plan(network, scales=_scales(model, weights))
        if training.key["arm"] == _SCRATCH:
            planned.init_()
    layout: Any = {"memory_format": torch.channels_last} if device.type == "cuda" else {}
    return network.to(device, **layout), planned


def _scales(model: str, weights: Path | None) -> Path | str:
    """Those of the pretraining; without one those that ship, or all ones."""
    if weights is not None:
        return weights.with_name("scales.safetensors")
    return model if model in shipped() else "ones"


def _task(training: Training, scope: Scope) -> DenseTask:
    return (_SMALL if scope.quick else _TASKS)[training.key["task"]]


def _data(training: Training, scope: Scope, split: Split, device: torch.device) -> Any:
    if scope.quick:
        return placed(_task(training, scope).made_up(32), device)
    return _read(training.key["task"], scope.folder(training.fine_tuned_on), split, device)


@cache
def _read(task: str, folder: Path, split: Split, device: torch.device) -> Any:
    """The images stay on the device for the other rows of this process."""
    return placed(_TASKS[task].read(folder, split), device)


def _libraries() -> str:
    names = ("segmentation_models_pytorch", "torchvision", "torchmetrics", "faster-coco-eval", "onnxruntime")
    return ", ".join(f"{name} {version(name)}" for name in names)


def _cost_column(heading: str, column: str, form: str, per: float = 1) -> Column:
    """A figure of the row that has the arm's cost."""
    shown = number(column, heading, form, per, what="cost")
    return Column(heading, lambda line: shown.cell(replace(line, rows=line.tried)))


TABLE7 = Table(
    title="Table 7: segmentation and detection",
    keys=("what", "task", "arm", "model", "rate", "seed"),
    trainings=[*_trainings()],
    figures=(
        *("val_accuracy", "ap50", "int8_accuracy", "calibrated", "pretrained_accuracy", "loss", "outcome"),
        *("images_per_second", "peak_memory_bytes", "epochs", "batch_size", "lr", "precision"),
        *("train_images", "val_images", "size", "libraries", *ENVIRONMENT),
    ),
    by=("task", "arm"),
    best=("rate",),
    chosen_on=_CHOOSES,
    order={"task": list(_COMPARED), "arm": ["RepVGG", "RepOpt, plain", _KEPT, "QARepVGG", "Dirac", _SCRATCH]},
    columns=[
        *("task", text("arm", "backbone and fine-tuning"), text("lr", "learning rate"), SEEDS),
        *(accuracy("mIoU", task="segmentation"), accuracy("mIoU, INT8", "int8_accuracy")),
        *(
            accuracy("AP", task=("detection", _LONGER)),
            accuracy("AP50", "ap50"),
            minus("RepVGG"),
            minus("RepOpt, plain"),
        ),
        accuracy("pretrained", "pretrained_accuracy"),
        *(
            _cost_column("training images/s", "images_per_second", "{:,.0f}"),
            _cost_column("GB", "peak_memory_bytes", "{:.1f}", 1e9),
            papers("paper, B1", _PAPER, "task", "arm", form="{:.2f}"),
        ),
    ],
)
