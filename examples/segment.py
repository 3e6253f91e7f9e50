"""Segmentation: UPerNet of segmentation_models_pytorch on a RepOpt backbone.

    python examples/segment.py --images 'leftImg8bit/train/*/*.png' \\
        --masks 'gtFine/train/*/*_labelTrainIds.png' --classes 19 --width 256

trains on pairs of files, by name; a mask has one class a pixel, and 255 where none counts. Without arguments: squares,
in seconds on a CPU. `--backbone` may be a finished run of a plain model: its weights stay, and images are normalized as
they were there. Needs segmentation_models_pytorch and torchmetrics.
"""

import json
from functools import partial
from glob import glob
from pathlib import Path

import numpy as np
import segmentation_models_pytorch as smp
import torch
import tyro
from PIL import Image
from torchmetrics.classification import MulticlassJaccardIndex

import repopt
import repopt.models.timm  # smp builds `tu-` encoders by timm's names


def pair(image: str, mask: str) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.from_numpy(np.array(Image.open(image).convert("RGB"))).permute(2, 0, 1)
    return pixels / 255, torch.from_numpy(np.array(Image.open(mask))).long()


def square(x: int) -> tuple[torch.Tensor, torch.Tensor]:
    image, mask = torch.rand(3, 64, 64) / 2, torch.zeros(64, 64).long()
    image[:, x : x + 32, x : x + 32] += 0.5
    mask[x : x + 32, x : x + 32] = 1
    return image, mask


def main(
    images: str = "",
    masks: str = "",
    classes: int = 2,
    width: int = 64,
    backbone: str = "repopt_vgg_nano",
    epochs: int = 4,
) -> None:
    torch.manual_seed(0)
    found = [sorted(glob(each)) for each in (images, masks)]
    if (images or masks) and not len(found[0]) == len(found[1]) > 0:
        raise SystemExit(f"--images matches {len(found[0])} files and --masks {len(found[1])}: each image needs a mask")
    data = [partial(pair, *each) for each in zip(*found, strict=True)] or [partial(square, 4 * i) for i in range(8)]
    trained = Path(backbone).is_dir()
    about = json.loads(Path(backbone, "config.json").read_text()) if trained else {"model": backbone}
    mean, std = (torch.tensor(about.get(key, [0.5] * 3)).view(3, 1, 1) for key in ("mean", "std"))
    model = smp.UPerNet(f"tu-{about['model']}", encoder_weights=None, decoder_channels=width, classes=classes)
    if trained:
        model.encoder.model = repopt.create_model(backbone, features_only=True)
    plan = repopt.plan(model, scales="ones")  # of the backbone, which declares its branches
    if not trained:
        plan.init_()
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 1e-4), lr=0.02, momentum=0.9, nesterov=True)
    repopt.attach(optimizer, plan)
    for epoch in range(epochs):
        for batch in torch.randperm(len(data)).split(4)[: len(data) // 4 or 1]:  # whole ones: a norm wants two images
            pixels, wanted = map(torch.stack, zip(*(data[i]() for i in batch), strict=True))
            loss = torch.nn.functional.cross_entropy(model((pixels - mean) / std), wanted, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    metric = MulticlassJaccardIndex(classes, ignore_index=255)
    model = repopt.models.deploy(model).eval().requires_grad_(False)
    for pixels, wanted in (load() for load in data):
        metric.update(model((pixels[None] - mean) / std), wanted[None])
    print(f"mIoU {metric.compute().item():.3f} on the training images")


if __name__ == "__main__":
    tyro.cli(main)
