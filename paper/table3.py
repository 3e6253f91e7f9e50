"""Table 3: inference beside VGG-16 and EfficientNets, and accuracy at a larger size than that of training."""

from importlib import import_module
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from paper.jobs import Lines, Scope, Training
from paper.tables import Table
from paper.view import accuracy, number, papers, text
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.inference import TIMINGS, inference_speed
from repopt.device import environment
from repopt.models import create_model, deploy
from repopt.train.recipe import Recipe
from repopt.train.runs import evaluate_run

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
_OURS = {name: tested for name, tested in _TESTED.items() if name.startswith("RepOpt")}
_LARGER = 128  # test size of a model that was trained at 96


def _row(name: str, key: dict[str, Any], **how: Any) -> Training:
    options = {"se": True} if name.endswith("SE") else {}
    return Training(model=_TESTED[name][0], key={"name": name, **key}, options=options, one_seed=True, **how)


def _at_both_sizes(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    """The accuracy at the size of training and at a larger one."""
    run, larger = training.run(scope, seed, workshop, weights=True), 48 if scope.quick else _LARGER
    with workshop.sharing():
        scores = evaluate_run(run, sizes=(larger,), device=workshop.device)
    own = figures_of(run)
    return [{**own, "test_size": own["size"]}, {**own, "test_size": larger, "val_accuracy": scores[larger].accuracy}]


def _speed(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    """Of a deployed model; a quick run times nano in the place of each."""
    name = training.key["name"]
    if scope.quick or name in _OURS:
        net = deploy(create_model(scope.model(training.model), **training.options))
    else:
        import_module("repopt.models.timm")  # says what to do where timm is missing
        import timm

        net = folded(timm.create_model(training.model))
    size, batch, steps = (32, 4, 2) if scope.quick else (*_TESTED[name][1:3], 30)
    about: dict[str, Any] = {"batch_size": batch, "size": size, "precision": scope.adapt(Recipe(), 0).precision}
    with workshop.alone():
        speed = inference_speed(net, **about, device=workshop.chosen_device, steps=steps)
    parameters = sum(param.numel() for param in net.parameters())
    about |= {"images_per_second": speed, "parameters": parameters, "norms": "folded", "timings": TIMINGS}
    return [{**about, **environment(workshop.chosen_device)}]


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
    trainings=[
        *(_row(name, {"what": "accuracy"}, scales="searched", measure=_at_both_sizes) for name in _OURS),
        # timm's last: it may not be there
        *(_row(name, {"what": "speed", "seed": 0}, data="", measure=_speed) for name in {**_OURS, **_TESTED}),
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
