"""Segmentation: UPerNet of segmentation_models_pytorch on a RepOpt backbone.

    python examples/segment.py --images 'leftImg8bit/train/*/*.png' \\
        --masks 'gtFine/train/*/*_labelTrainIds.png' --classes 19 --width 256

trains on pairs of files, in the order of their names; a mask has one class a pixel, and 255 where none counts. Without
arguments: made-up squares, in seconds on a CPU. `--weights` are those of a backbone that was trained before, such as
model.safetensors of a run; they stay as they are. Needs segmentation_models_pytorch and torchmetrics.
"""

from glob import glob
from pathlib import Path

import numpy as np
import segmentation_models_pytorch as smp
import torch
import tyro
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassJaccardIndex

import repopt
import repopt.models.timm  # smp builds `tu-` encoders by timm's names
from repopt.models import deploy, load_checkpoint


def pair(image: str, mask: str) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(np.array(Image.open(image).convert("RGB"))).permute(2, 0, 1)
    return pixels / 127.5 - 1, torch.from_numpy(np.array(Image.open(mask))).long()


def square() -> tuple[Tensor, Tensor]:
    image, mask, (x, y) = torch.rand(3, 64, 64), torch.zeros(64, 64).long(), torch.randint(0, 32, (2,)).tolist()
    image[:, y : y + 32, x : x + 32] -= 1
    mask[y : y + 32, x : x + 32] = 1
    return image, mask


def main(
    images: str | None = None,
    masks: str | None = None,
    classes: int = 2,
    width: int = 64,
    encoder: str = "repopt_vgg_nano",
    weights: Path | None = None,
    epochs: int = 4,
) -> None:
    torch.manual_seed(0)
    files = list(zip(sorted(glob(images)), sorted(glob(masks)), strict=True)) if images and masks else []
    data = [pair(*each) for each in files] or [square() for _ in range(8)]
    model = smp.UPerNet(f"tu-{encoder}", encoder_weights=None, decoder_channels=width, classes=classes)
    plan = repopt.plan(model, scales="ones")  # of the backbone, which declares its branches
    if weights is None:
        plan.init_()
    else:
        load_checkpoint(model.encoder.model, weights)
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 1e-4), lr=0.02, momentum=0.9, nesterov=True)
    repopt.attach(optimizer, plan)
    for epoch in range(epochs):
        for batch in torch.randperm(len(data)).split(4):
            pixels, wanted = map(torch.stack, zip(*(data[i] for i in batch), strict=True))
            loss = cross_entropy(model(pixels), wanted, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    model, metric = deploy(model).eval().requires_grad_(False), MulticlassJaccardIndex(classes, ignore_index=255)
    for pixels, wanted in data:
        metric.update(model(pixels[None]), wanted[None])
    print(f"mIoU {metric.compute().item():.3f} on the training images")


if __name__ == "__main__":
    tyro.cli(main)
