"""Tables 2 and 3: accuracy and speed, of training against RepVGG, of inference beside VGG-16 and EfficientNets."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise, product
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from paper.jobs import Lines, Scope, Training
from paper.tables import Table
from paper.view import SEEDS, Record, accuracy, number, over_rows, papers, spread, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.inference import SECONDS, TIMINGS, inference_speed
from repopt.bench.train_cost import measure_training
from repopt.device import environment
from repopt.models import create_model, deploy
from repopt.models.counting import parameters
from repopt.train.methods import Method
from repopt.train.recipe import Recipe
from repopt.train.runs import evaluate_run

_METHODS: tuple[Method, ...] = ("repvgg", "repopt")
_EQUAL = 32  # on one GPU, as the paper counts
_AT = {"equal": f"batch {_EQUAL}", "largest": "largest batch"}
# our largest batch: the largest multiple of 8 that trains within 11 GB at 224 pixels, by the slope of the memory from
# 32 to 96 images; then the paper's accuracy at equal batches and at the largest, that batch on one GPU, samples/s at
# both, millions of parameters
_MODELS: dict[tuple[str, Method], tuple[int, str, str, int, int, int, float]] = {
    ("b1", "repvgg"): (192, "78.41 ± 0.01", "78.65 ± 0.03", 198, 213, 243, 57.4),
    ("b1", "repopt"): (384, "78.47 ± 0.03", "78.62 ± 0.03", 260, 380, 445, 51.8),
    ("b2", "repvgg"): (160, "79.53 ± 0.08", "79.78 ± 0.14", 153, 142, 163, 89.0),
    ("b2", "repopt"): (328, "79.36 ± 0.09", "79.66 ± 0.12", 200, 246, 264, 80.3),
    ("l1", "repvgg"): (104, "79.39 ± 0.07", "79.84 ± 0.02", 106, 124, 136, 84.3),
    ("l1", "repopt"): (232, "79.46 ± 0.02", "79.83 ± 0.03", 140, 221, 252, 76.0),
    ("l2", "repvgg"): (80, "80.52 ± 0.05", "80.56 ± 0.09", 77, 82, 86, 131.0),
    ("l2", "repopt"): (176, "80.29 ± 0.02", "80.53 ± 0.09", 103, 138, 149, 118.1),
}
_PAPER = {(f"repopt_vgg_{size}", method): figures for (size, method), figures in _MODELS.items()}
LARGEST = {model: figures[0] for model, figures in _PAPER.items()}


def _row(what: str, size: str, method: Method, batches: str) -> Training:
    key = {"what": what, "method": method, "batches": batches}
    if what == "speed":
        return Training(model=size, key=key, method=method, data="", measure=_training_speed)
    fields = {"batch_size": _MODELS[size, method][0]} if batches == "largest" else {}
    return Training(model=size, key=key, method=method, fields=fields, one_seed=size != "b1")


def _training_speed(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    largest = training.key["batches"] == "largest" and not scope.quick
    batch = _MODELS[training.model, training.method][0] if largest else _EQUAL
    recipe, device = replace(scope.adapt(Recipe(flip=False), 0), batch_size=batch), workshop.chosen_device
    size, classes, steps = (32, 10, 2) if scope.quick else (224, 1000, 50)
    at: dict[str, Any] = {"size": size, "classes": classes, "steps": steps, "device": device}
    with workshop.alone():
        torch.compiler.reset()
        (cost,) = measure_training(scope.model(training.model), (training.method,), recipe, **at)
    about = {"batch_size": batch, "size": size, "precision": recipe.precision, "parameters": cost.parameters}
    found = {"images_per_second": cost.images_per_second, "peak_memory_bytes": cost.peak_bytes}
    return [{**about, **found, **environment(device)}]


def _with_batch(rows: Sequence[Record]) -> str:
    return spread(rows) + "".join(f" (batch {size})" for size in {row["batch_size"] for row in rows} - {""})


TABLE2 = Table(
    title="Table 2: RepOpt against RepVGG",
    keys=("what", "model", "method", "batches", "seed"),
    trainings=[
        *(_row("accuracy", size, method, "equal") for size, method in _MODELS),
        *(_row("accuracy", "b1", method, "largest") for method in _METHODS),
        *(_row("speed", size, method, batches) for (size, method), batches in product(_MODELS, _AT)),
    ],
    figures=("images_per_second", "peak_memory_bytes", "note", *FIGURES),
    by=("model", "method"),
    order={"method": _METHODS},
    columns=[
        *("model", "method", SEEDS),
        *(over_rows(f"accuracy, {at} batches", _with_batch, what="accuracy", batches=at) for at in _AT),
        *(number("images_per_second", f"images/s, {name}", what="speed", batches=at) for at, name in _AT.items()),
        number("batch_size", "largest batch", what="speed", batches="largest"),
        *(number("peak_memory_bytes", f"GB, {_AT[at]}", "{:.1f}", 1e9, what="speed", batches=at) for at in _AT),
        number("parameters", "M parameters", "{:.1f}", 1e6, what="speed", batches="equal"),
        papers("paper, accuracy", _PAPER, "model", "method", form="{0[1]}; {0[2]}"),
        papers("paper, samples/s", _PAPER, "model", "method", form="{0[4]}; {0[5]} (batch {0[3]})"),
        papers("paper, M parameters", _PAPER, "model", "method", form="{0[6]:.1f}"),
    ],
)

# {name: (model, by size where it is ours; test size; batch; the paper's samples/s; the paper's accuracy)}
_TESTED = {
    "RepOpt-VGG-B1": ("b1", 224, 128, 970, "78.47"),
    "EfficientNet-B2": ("efficientnet_b2", 260, 128, 912, "76.29 (79.8)"),
    "RepOpt-VGG-B2": ("b2", 224, 128, 645, "79.39"),
    "VGGNet-16": ("vgg16", 224, 128, 621, "74.47"),
    "RepOpt-VGG-L2": ("l2", 224, 128, 372, "80.31"),
    "EfficientNet-B3": ("efficientnet_b3", 300, 128, 301, "79.12 (81.1)"),
    "RepOpt-VGG-L2, SE": ("l2", 320, 64, 180, "83.13"),
    "EfficientNet-B4": ("efficientnet_b4", 380, 64, 183, "82.02 (82.6)"),
    "EfficientNet-B5": ("efficientnet_b5", 456, 64, 91, "82.96 (83.3)"),
}
_OURS = [name for name in _TESTED if name.startswith("RepOpt")]
_LARGER = 128  # test size of a model that was trained at 96


def _tested(name: str, what: str, **how: Any) -> Training:
    options = {"se": True} if name.endswith("SE") else {}
    return Training(model=_TESTED[name][0], key={"name": name, "what": what}, options=options, one_seed=True, **how)


def _at_both_sizes(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """The accuracy at the size of training and at a larger one."""
    run, larger = training.run(scope, seed, workshop, weights=True), 48 if scope.quick else _LARGER
    with workshop.sharing():
        scores = evaluate_run(run, sizes=(larger,), device=workshop.device)
    own = figures_of(run)
    return [{**own, "test_size": own["size"]}, {**own, "test_size": larger, "val_accuracy": scores[larger].accuracy}]


def _inference_speed(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    """The speed of a deployed model; a quick run times nano in the place of each."""
    name, device = training.key["name"], workshop.chosen_device
    if scope.quick or name in _OURS:
        net = deploy(create_model(scope.model(training.model), **training.options))
    else:
        import_module("repopt.models.timm")  # says what to do where timm is missing
        import timm

        net = folded(timm.create_model(training.model))
    size, batch, seconds = (32, 4, 0.0) if scope.quick else (*_TESTED[name][1:3], SECONDS)
    about: dict[str, Any] = {"batch_size": batch, "size": size, "precision": scope.adapt(Recipe(), 0).precision}
    with workshop.alone():
        speed = inference_speed(net, **about, device=device, seconds=seconds)
    about |= {"images_per_second": speed, "parameters": parameters(net), "norms": "folded", "timings": TIMINGS}
    return [{**about, **environment(device)}]


def folded(net: nn.Module) -> nn.Module:
    """A model of timm's with its norms folded into the convolutions before them, as ours are when deployed."""
    for parent in list(net.modules()):
        for (name, conv), (norm_name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms hold what follows them
    return net


TABLE3 = Table(
    title="Table 3: beside VGG-16 and EfficientNets",
    keys=("what", "name", "seed"),
    trainings=[
        *(_tested(name, "accuracy", method="repopt", measure=_at_both_sizes) for name in _OURS),
        # timm's last: it may not be there
        *(_tested(name, "speed", data="", measure=_inference_speed) for name in dict.fromkeys((*_OURS, *_TESTED))),
    ],
    figures=("test_size", "images_per_second", "norms", "timings", "note", *FIGURES),
    by=("name",),
    order={"name": list(_TESTED)},
    columns=[
        *(text("name", "model"), number("size", what="speed"), number("batch_size", "batch", what="speed")),
        number("images_per_second", "images/s"),
        accuracy("Imagenette at 96", test_size="96"),
        accuracy(f"at {_LARGER}", test_size=str(_LARGER)),
        papers("paper, samples/s", _TESTED, "name", form="{0[3]}"),
        papers("paper, accuracy", _TESTED, "name", form="{0[4]}"),
    ],
)
