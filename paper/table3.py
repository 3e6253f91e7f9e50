"""Table 3: inference beside VGG-16 and EfficientNets, and accuracy at a larger size than that of training."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from paper.jobs import Scope, Training
from paper.tables import Table, TableRow
from paper.view import View, accuracy, number, papers, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.inference import TIMINGS, inference_speed
from repopt.device import environment
from repopt.models import create_model, deploy
from repopt.train.recipe import Recipe
from repopt.train.runs import evaluate_run


@dataclass(frozen=True)
class _Tested:
    """A model, by size where it is ours, with the test size and batch, and the paper's samples/s and accuracy."""

    model: str
    size: int
    batch: int
    papers_speed: int
    papers_accuracy: str
    options: dict[str, Any] = field(default_factory=dict)


_TESTED = {
    "RepOpt-VGG-B1": _Tested("b1", 224, 128, 970, "78.47"),
    "EfficientNet-B2": _Tested("efficientnet_b2", 260, 128, 912, "76.29 (79.8)"),
    "RepOpt-VGG-B2": _Tested("b2", 224, 128, 645, "79.39"),
    "VGGNet-16": _Tested("vgg16", 224, 128, 621, "74.47"),
    "RepOpt-VGG-L2": _Tested("l2", 224, 128, 372, "80.31"),
    "EfficientNet-B3": _Tested("efficientnet_b3", 300, 128, 301, "79.12 (81.1)"),
    "RepOpt-VGG-L2, SE": _Tested("l2", 320, 64, 180, "83.13", {"se": True}),
    "EfficientNet-B4": _Tested("efficientnet_b4", 380, 64, 183, "82.02 (82.6)"),
    "EfficientNet-B5": _Tested("efficientnet_b5", 456, 64, 91, "82.96 (83.3)"),
}
_OURS = {name: tested for name, tested in _TESTED.items() if name.startswith("RepOpt")}
_LARGER = 128  # test size of a model that was trained at 96


def _training(name: str) -> Training:
    key, tested = {"what": "accuracy", "name": name}, _OURS[name]
    return Training(model=tested.model, key=key, scales="searched", options=tested.options, one_seed=True)


def _others(scope: Scope) -> Iterator[TableRow]:
    for name in _OURS if scope.quick else {**_OURS, **_TESTED}:  # timm's last: it may not be there
        yield TableRow(key={"what": "speed", "name": name, "seed": 0}, measure=partial(_speed, scope, name))


def _read(scope: Scope, workshop: Workshop, run: Path) -> list[dict[str, Any]]:
    """The accuracy at the size of training and at a larger one."""
    own, larger = figures_of(run), 48 if scope.quick else _LARGER
    with workshop.sharing():
        scores = evaluate_run(run, sizes=(larger,), device=workshop.device)
    return [{**own, "test_size": own["size"]}, {**own, "test_size": larger, "val_accuracy": scores[larger].accuracy}]


def _speed(scope: Scope, name: str, workshop: Workshop) -> list[dict[str, Any]]:
    tested, device = _TESTED[name], workshop.chosen_device
    if name in _OURS:
        net = deploy(create_model(scope.model(tested.model), **tested.options))
    else:
        import_module("repopt.models.timm")  # says what to do where timm is missing
        import timm

        net = folded(timm.create_model(tested.model))
    size, batch, steps = (32, 4, 2) if scope.quick else (tested.size, tested.batch, 30)
    about: dict[str, Any] = {"batch_size": batch, "size": size, "precision": scope.adapt(Recipe(), 0).precision}
    with workshop.alone():
        speed = inference_speed(net, **about, device=device, steps=steps)
    parameters = sum(param.numel() for param in net.parameters())
    about |= {"images_per_second": speed, "parameters": parameters, "norms": "folded", "timings": TIMINGS}
    return [{**about, **environment(device)}]


def folded(net: nn.Module) -> nn.Module:
    """A model of timm's with its norms folded into the convolutions before them, as ours are when deployed."""
    for parent in list(net.modules()):
        for (name, conv), (norm_name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms hold what follows them
    return net


TABLE = Table(
    title="Table 3: beside VGG-16 and EfficientNets",
    keys=("what", "name", "seed"),
    trainings=[_training(name) for name in _OURS],
    read=_read,
    weights=True,
    others=_others,
    figures=("test_size", "images_per_second", "norms", "timings", "note", *FIGURES),
    view=View(
        by=("name",),
        order={"name": list(_TESTED)},
        columns=[
            *(text("name", "model"), number("size", what="speed"), number("batch_size", "batch", what="speed")),
            number("images_per_second", "images/s"),
            accuracy("Imagenette at 96", test_size="96"),
            accuracy(f"at {_LARGER}", test_size=str(_LARGER)),
            papers("paper, samples/s", _TESTED, "name", form="{0.papers_speed}"),
            papers("paper, accuracy", _TESTED, "name", form="{0.papers_accuracy}"),
        ],
    ),
)
