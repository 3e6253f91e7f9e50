"""Table 3: inference beside VGG-16 and EfficientNets, and accuracy at a larger size than that of training."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from paper.jobs import own_scales, search_left, training_job
from paper.scope import Scope
from paper.summaries import dates, markdown, matching, notes, setting, spread
from paper.tables import Record, Row, Table
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.bench.inference import TIMINGS, inference_speed
from repopt.device import environment
from repopt.models import create_model, deploy
from repopt.train.runs import evaluate_run

# {name: (ours or timm's, options, test size, test batch, the paper's samples/s and accuracy)}
_Tested = dict[str, tuple[str, dict[str, Any], int, int, int, str]]
_TESTED: _Tested = {
    "RepOpt-VGG-B1": ("repopt_vgg_b1", {}, 224, 128, 970, "78.47"),
    "EfficientNet-B2": ("timm/efficientnet_b2", {}, 260, 128, 912, "76.29 (79.8)"),
    "RepOpt-VGG-B2": ("repopt_vgg_b2", {}, 224, 128, 645, "79.39"),
    "VGGNet-16": ("timm/vgg16", {}, 224, 128, 621, "74.47"),
    "RepOpt-VGG-L2": ("repopt_vgg_l2", {}, 224, 128, 372, "80.31"),
    "EfficientNet-B3": ("timm/efficientnet_b3", {}, 300, 128, 301, "79.12 (81.1)"),
    "RepOpt-VGG-L2, SE": ("repopt_vgg_l2", {"se": True}, 320, 64, 180, "83.13"),
    "EfficientNet-B4": ("timm/efficientnet_b4", {}, 380, 64, 183, "82.02 (82.6)"),
    "EfficientNet-B5": ("timm/efficientnet_b5", {}, 456, 64, 91, "82.96 (83.3)"),
}
_QUICK: _Tested = {"RepOpt-VGG-nano": ("repopt_vgg_nano", {}, 32, 4, 0, "")}
_BESIDE = {
    "RepOpt-VGG-B1": "EfficientNet-B2",
    "RepOpt-VGG-B2": "VGGNet-16",
    "RepOpt-VGG-L2": "EfficientNet-B3",
    "RepOpt-VGG-L2, SE": "EfficientNet-B4",
}
_LARGER = 128  # test size of a model that was trained at 96


def _rows(scope: Scope) -> Iterator[Row]:
    tested = _QUICK if scope.quick else _TESTED
    ours = {name: each for name, each in tested.items() if each[0].startswith("repopt")}
    for name, (model, options, *_) in ours.items():
        yield _accuracy_row(scope, name, model, options)
    for name, (model, options, size, batch, _, _) in {**ours, **tested}.items():  # timm's last: it may not be there
        yield _speed_row(scope, name, model, options, size, batch)


def _speed_row(scope: Scope, name: str, model: str, options: dict[str, Any], size: int, batch: int) -> Row:
    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        precision = scope.target_recipe(0).precision
        source, _, timm_name = model.partition("/")
        net = _timm_model(timm_name) if source == "timm" else deploy(create_model(model, **options))
        parameters = sum(param.numel() for param in net.parameters())
        device = workshop.chosen_device
        steps = 2 if scope.quick else 30
        with workshop.alone():
            speed = inference_speed(net, batch_size=batch, size=size, precision=precision, device=device, steps=steps)
        about = {"images_per_second": speed, "parameters": parameters, "batch_size": batch, "size": size}
        return [{**about, "norms": "folded", "timings": TIMINGS, "precision": precision, **environment(device)}]

    return Row(key={"what": "speed", "name": name, "seed": 0}, measure=measure, minutes=1.0)


def _timm_model(name: str) -> nn.Module:
    try:
        import timm
    except (ImportError, RuntimeError) as error:  # its torchvision may be made for another torch
        raise ImportError(
            f"VGG-16 and the EfficientNets are timm's, and its import fails ({error}): pip install 'repopt[timm]'"
        ) from error
    return folded(timm.create_model(name))


def folded(net: nn.Module) -> nn.Module:
    """A model of timm's with its norms folded into the convolutions before them, as ours are when deployed."""
    for parent in list(net.modules()):
        for (name, conv), (norm_name, norm) in itertools.pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, norm_name, getattr(norm, "act", nn.Identity()))  # timm's norms hold what follows them
    return net


def _accuracy_row(scope: Scope, name: str, model: str, options: dict[str, Any]) -> Row:
    seed = scope.seeds[0]

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        job = training_job(scope, model, "repopt", seed, own_scales(scope, workshop, model))
        run = workshop.run(replace(job, options=options), weights=True)
        own = figures_of(run)
        larger = 48 if scope.quick else _LARGER
        with workshop.sharing():
            scores = evaluate_run(run, sizes=(larger,), device=workshop.device)
        return [
            {**own, "test_size": own["size"]},
            {**own, "test_size": larger, "val_accuracy": scores[larger].accuracy},
        ]

    key = {"what": "accuracy", "name": name, "seed": seed}
    return Row(key=key, measure=measure, minutes=1.0, searches=search_left(model, 5.0))


def _part(rows: Sequence[Record]) -> list[str]:
    accuracy, speed = matching(rows, what="accuracy"), matching(rows, what="speed")
    lines = ["The paper: ImageNet, one 2080Ti in fp32; in brackets the official EfficientNets. "]
    if speed:
        first = speed[0]
        lines[0] += (
            f"Ours: noise at the paper's sizes and batches, {first['precision']}, compiled, "
            f"{first['hardware']}, torch {first['torch']}, {dates(speed)}; our models deployed, the others "
            f"timm's, norms folded into convolutions. A speed is {_timings(speed)}. "
        )
    if accuracy:
        lines[0] += (
            f"Accuracy on Imagenette, {setting(accuracy)} Only our own models were trained (the paper's for 120, 200 "
            "or 300 epochs); larger test images are enlarged. L2 with SE has the scales that were searched without."
        )
    lines += [""]
    cells = []
    for name in (name for name in _TESTED | _QUICK if matching(rows, name=name)):
        fast, scores = matching(speed, name=name), matching(accuracy, name=name)
        paper = _TESTED.get(name)
        cells.append(
            (
                name,
                *((fast[0]["size"], fast[0]["batch_size"]) if fast else ("", "")),
                f"{float(fast[0]['images_per_second']):,.0f}" if fast else "",
                "; ".join(
                    f"{spread([row])} at {row['test_size']}" if row["test_size"] else spread([row]) for row in scores
                ),
                f"{paper[4]:,}" if paper else "",
                paper[5] if paper else "",
            )
        )
    columns = {"model": "<", "size": ">", "batch": ">", "images/s": ">", "accuracy, Imagenette": "<"}
    lines += markdown({**columns, "paper, samples/s": ">", "paper, accuracy": ">"}, cells)
    told = [*filter(None, [_ratios(speed)]), *notes(speed, "name")]
    return [*lines, "", " ".join(told)] if told else lines


def _timings(speed: Sequence[Record]) -> str:
    counts = sorted({int(row["timings"]) for row in speed})
    return "one timing" if counts == [1] else f"the median of {' or '.join(map(str, counts))} timings"


def _ratios(speed: Sequence[Record]) -> str | None:
    """How much faster ours are than those that the paper sets beside them."""
    found = {row["name"]: float(row["images_per_second"]) for row in speed}
    pairs = [(ours, other) for ours, other in _BESIDE.items() if {ours, other} <= found.keys()]
    papers = {name: tested[4] for name, tested in _TESTED.items()}
    told = [
        f"{ours} to {other} {found[ours] / found[other]:.2f} ({papers[ours] / papers[other]:.2f})"
        for ours, other in pairs
    ]
    slower = [
        f"{ours} than {other}" for ours, other in pairs if found[ours] < found[other] and papers[ours] > papers[other]
    ]
    lost = f" Faster in the paper, and slower here: {'; '.join(slower)}." if slower else ""
    return f"Times the images a second of another, in brackets the paper's: {'; '.join(told)}.{lost}" if told else None


TABLE = Table(
    name="table3",
    title="Table 3: beside VGG-16 and EfficientNets",
    keys=("what", "name", "seed"),
    rows=_rows,
    part=_part,
    figures=("test_size", "images_per_second", "norms", "timings", "note", *FIGURES),
)
