"""`repopt predict`: which classes a finished run sees in images."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from repopt.cli.output import Device, print_json
from repopt.train.prediction import predict_run


def predict(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")],
    *,
    top: int = 5,
    best: bool = False,
    trust: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> int:
    """Say which classes a finished run sees in images.

    Example: repopt predict runs/b1 photo.jpg more_photos --top 3

    Args:
        run: the run folder.
        images: JPEG, PNG or WebP files, or folders of them.
        top: how many classes of each image, the most likely first.
        best: take best.safetensors, the weights of the epoch with the highest validation accuracy.
        trust: load from the run what can execute code, a model's package.module:factory: trust the one who wrote it.
        device: auto is CUDA if there is one.
        json: print JSON instead of lines.
    """
    found = predict_run(run, images, top=top, device=device, best=best, trust=trust)
    if json:
        print_json([{**vars(each), "image": str(each.image)} for each in found])
        return 0
    for each in found:
        likely = zip(each.classes, each.probabilities, strict=True)
        image = os.fsencode(each.image).decode(errors="backslashreplace")  # its name need not be UTF-8
        print(f"{image}: {', '.join(f'{name} {share:.1%}' for name, share in likely)}")
    return 0
