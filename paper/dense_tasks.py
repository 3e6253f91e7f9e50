"""Table 7's two tasks: smp's UPerNet on Cityscapes, and torchvision's FCOS on COCO, on a backbone of repopt.

The images lie on the device as uint8 tensors and are augmented there. Both tasks have one training loop, `steps`.
"""

import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from paper.dense_data import CITYSCAPES, IGNORED, VOC, BoxedImages, Scenes, Split, placed, read_cityscapes, read_coco
from repopt.data.augment import scaled, scaling
from repopt.device import arithmetic
from repopt.models import create_model, deploy, load_checkpoint
from repopt.plans.planning import Plan
from repopt.quantize import Int8, quantize_model
from repopt.train.methods import Subject, make_optimizer
from repopt.train.recipe import Recipe, lr_at
from repopt.train.step import set_lr_
from repopt.train.stopping import DivergedError

_SEGMENTATION = Recipe(epochs=15, batch_size=16, lr_batch=16, warmup_epochs=1, weight_decay=1e-4)
_DETECTION = replace(_SEGMENTATION, epochs=10)


@dataclass(frozen=True, kw_only=True)
class DenseSettings:
    """What both tasks have: how they are trained, how wide the head is, and how images are normalized."""

    recipe: Recipe = _SEGMENTATION
    width: int = 128  # channels of the head
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of each channel; a pretrained backbone has its own
    std: tuple[float, ...] = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Segmentation(DenseSettings):
    """UPerNet, trained on flipped crops of rescaled images and tested on whole ones."""

    size: tuple[int, int] = (256, 512)  # height and width of the images; trained on are squares of their height
    zoom: tuple[float, float] = (0.5, 2.0)  # smallest and largest factor that an image is rescaled by
    calibrated: int = 32  # training images that INT8 is calibrated on

    def read(self, path: Path, split: Split) -> Scenes:
        return read_cityscapes(path, split, size=self.size)

    def made_up(self, images: int) -> Scenes:
        labels = torch.randint(0, len(CITYSCAPES), (images, *self.size), dtype=torch.uint8)
        return Scenes(pixels=torch.randint(0, 256, (images, 3, *self.size), dtype=torch.uint8), labels=labels)

    def network(self, name: str, weights: Path | None) -> nn.Module:
        import segmentation_models_pytorch as smp

        import repopt.models.timm  # noqa: F401  (smp builds `tu-` encoders by timm's names)

        encoder = name if name.startswith("repopt_") else f"repopt_{name}"
        about = {"encoder_weights": None, "decoder_channels": self.width, "classes": len(CITYSCAPES)}
        network: nn.Module = smp.UPerNet(f"tu-{encoder}", **about)
        if weights is not None:
            load_checkpoint(network.get_submodule("encoder.model"), weights)
        return network

    def loss(self, network: nn.Module, data: Scenes, batch: Tensor) -> Tensor:
        pixels, labels = self.augmented(data.pixels[batch], data.labels[batch])
        return cross_entropy(network(self._normalized(pixels)).float(), labels, ignore_index=IGNORED)

    def augmented(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """A random crop of each rescaled image, flipped or not; what lies outside is black and does not count."""
        (count, _, side, width), device = pixels.shape, pixels.device
        zoom = torch.empty(count, device=device).uniform_(*self.zoom)
        part = torch.stack([side / (zoom * width), 1 / zoom], dim=1)  # that a crop has of an image
        centre = (1 - part).abs() * (2 * torch.rand(count, 2, device=device) - 1)
        flip = 1.0 - 2.0 * torch.randint(0, 2, (count, 1), device=device)
        across = torch.cat([part[:, :1] * flip, torch.zeros_like(flip), centre[:, :1]], dim=1)
        down = torch.cat([torch.zeros_like(flip), part[:, 1:], centre[:, 1:]], dim=1)
        with torch.autocast(device.type, enabled=False):  # a product of matrices, which bf16 has to a whole pixel
            grid = affine_grid(torch.stack([across, down], dim=1), [count, 1, side, side], align_corners=False)
        images = grid_sample(pixels.float(), grid, align_corners=False)
        # outside is 0 for grid_sample
        classes = grid_sample(labels[:, None].float() - IGNORED, grid, mode="nearest", align_corners=False)
        return images, (classes[:, 0] + IGNORED).long()

    def score(self, network: nn.Module, data: Scenes) -> dict[str, float]:
        from torchmetrics.classification import MulticlassJaccardIndex

        metric = MulticlassJaccardIndex(len(CITYSCAPES), ignore_index=IGNORED).to(data.pixels.device)
        with torch.no_grad():
            for pixels, labels in zip(torch.split(data.pixels, 8), torch.split(data.labels, 8), strict=True):
                metric.update(network(self._normalized(pixels.float())).argmax(dim=1), labels.long())
        return {"val_accuracy": 100 * metric.compute().item()}

    def int8_score(self, network: nn.Module, train: Scenes, val: Scenes) -> dict[str, float]:
        """The mIoU in INT8 by ONNX Runtime on the processor, calibrated on training images of all cities."""
        every = max(1, len(train.pixels) // self.calibrated)
        images = self._normalized(train.pixels[::every][: self.calibrated].float()).cpu()
        with TemporaryDirectory() as folder:
            setting = Int8(backend="onnxruntime", images=len(images))
            int8 = quantize_model(network, torch.split(images, 8), Path(folder, "model.onnx"), setting=setting)
            found = self.score(int8, placed(val, torch.device("cpu")))
        return {"int8_accuracy": found["val_accuracy"], "calibrated": len(images)}

    def _normalized(self, pixels: Tensor) -> Tensor:
        return scaled(pixels, *_scaling(self.mean, self.std, pixels.device))


_scaling = cache(scaling)  # which copies to the device


def in_float32(maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outside of the convolutions: torchvision computes boxes in the type of the maps, in bf16 to a whole pixel."""
    return {name: each.float() for name, each in maps.items()}


class Pyramid(nn.Module):
    """A backbone of repopt as torchvision's detectors take it."""

    def __init__(self, body: nn.Module, width: int) -> None:
        from torchvision.ops import FeaturePyramidNetwork
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        super().__init__()
        self.body, self.out_channels = body, width
        channels = body.feature_info.channels()  # type: ignore[union-attr, operator]
        self.fpn = FeaturePyramidNetwork(channels, width, LastLevelP6P7(width, width))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.fpn(OrderedDict((str(level), each) for level, each in enumerate(self.body(x))))
        return in_float32(maps)


@dataclass(frozen=True, kw_only=True)
class Detection(DenseSettings):
    """FCOS, trained on flipped images; the classes are Pascal VOC's."""

    recipe: Recipe = _DETECTION
    size: int = 224  # side of the images

    def read(self, path: Path, split: Split) -> BoxedImages:
        return read_coco(path, split, size=self.size)

    def made_up(self, images: int) -> BoxedImages:
        corner = torch.randint(0, self.size // 2, (images, 1, 2)).float()
        return BoxedImages(
            pixels=torch.randint(0, 256, (images, 3, self.size, self.size), dtype=torch.uint8),
            boxes=list(torch.cat([corner, corner + self.size // 3], dim=2)),
            labels=list(torch.randint(1, 1 + len(VOC), (images, 1))),
            classes=VOC,
        )

    def network(self, name: str, weights: Path | None) -> nn.Module:
        from torchvision.models.detection import FCOS

        body = create_model(name, features_only=True, out_indices=(2, 3, 4))
        if weights is not None:
            load_checkpoint(body, weights)
        sizes = {"min_size": self.size, "max_size": self.size, "_skip_resize": True}  # in training: they have that size
        pixels: dict[str, Any] = {"image_mean": list(self.mean), "image_std": list(self.std), **sizes}
        network: nn.Module = FCOS(Pyramid(body, self.width), 1 + len(VOC), **pixels)
        network.get_submodule("head").register_forward_hook(lambda _, __, found: in_float32(found))
        # behind a ReLU: from torchvision's 0, sides of the boxes die in the first steps and never come back
        nn.init.ones_(network.get_parameter("head.regression_head.bbox_reg.bias"))
        return network

    def loss(self, network: nn.Module, data: BoxedImages, batch: Tensor) -> Tensor:
        pixels, targets = data.pixels[batch].float() / 255, list[dict[str, Tensor]]()
        side, flips = pixels.shape[-1], (torch.rand(len(batch)) < 0.5).tolist()
        for index, flip in zip(batch.tolist(), flips, strict=True):
            left, top, right, bottom = data.boxes[index].unbind(dim=1)
            boxes = torch.stack([side - right, top, side - left, bottom], dim=1) if flip else data.boxes[index]
            targets.append({"boxes": boxes, "labels": data.labels[index]})
        images = [image.flip(-1) if flip else image for image, flip in zip(pixels, flips, strict=True)]
        losses: dict[str, Tensor] = network(images, targets)
        return torch.stack([*losses.values()]).sum()

    def score(self, network: nn.Module, data: BoxedImages) -> dict[str, float]:
        from torchmetrics.detection import MeanAveragePrecision

        metric = MeanAveragePrecision(backend="faster_coco_eval")
        with torch.no_grad():
            for batch in torch.split(torch.arange(len(data.pixels)), 32):
                found = network(list(data.pixels[batch].float() / 255))
                wanted = [{"boxes": data.boxes[index], "labels": data.labels[index]} for index in batch.tolist()]
                metric.update(*([{key: each[key].cpu() for key in each} for each in side] for side in (found, wanted)))
        computed = metric.compute()
        return {"val_accuracy": 100 * computed["map"].item(), "ap50": 100 * computed["map_50"].item()}


DenseTask = Segmentation | Detection


def steps(task: DenseTask, network: nn.Module, plan: Plan | None, data: Any, recipe: Recipe) -> Iterator[Tensor]:
    """Trains a network on data that are on its device, by the plan's RepOptimizer where there is one.

    Yields:
        The loss of each step.
    """
    if recipe.precision == "fp16":
        raise ValueError("dense prediction is trained without loss scaling: give --precision bf16 or fp32, not fp16")
    torch.manual_seed(recipe.seed)
    optimizer = make_optimizer(Subject(method="repopt" if plan else "sgd", model=network, plan=plan), recipe, recipe.lr)
    device, in_epoch = data.pixels.device, len(data.pixels) // recipe.batch_size
    if not in_epoch:
        raise ValueError(f"{len(data.pixels)} images are fewer than a batch of {recipe.batch_size}: give more data")
    network.train()
    with arithmetic(tf32=recipe.precision != "fp32", benchmark=True):
        for epoch in range(recipe.epochs):
            order = torch.randperm(len(data.pixels))[: in_epoch * recipe.batch_size].view(in_epoch, -1)
            for number, batch in enumerate(order, start=epoch * in_epoch):
                set_lr_(optimizer, lr_at(recipe, number, in_epoch))
                with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
                    loss = task.loss(network, data, batch)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                yield loss.detach()
            if not loss.isfinite():
                raise DivergedError(f"the loss was not finite after epoch {epoch + 1}")


def fine_tuned(
    task: DenseTask, network: nn.Module, plan: Plan | None, data: Any, recipe: Recipe
) -> tuple[nn.Module, float]:
    """The trained network in the form that it is deployed in, and the mean loss of its last steps."""
    losses = deque(steps(task, network, plan, data, recipe), maxlen=100)
    return deploy(network).eval().requires_grad_(False), torch.stack([*losses]).mean().item()


def cost(
    task: DenseTask, network: nn.Module, plan: Plan | None, data: Any, recipe: Recipe, *, timed: int
) -> dict[str, float | None]:
    """Training images per second, the median of five stretches after a few steps that warm up, and the most memory."""
    device, warm, stretch = data.pixels.device, min(timed, 5), max(1, timed // 5)
    endless = replace(recipe, epochs=timed + warm)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ticks = []
    for number, loss in enumerate(islice(steps(task, network, plan, data, endless), warm + timed), start=1):
        if number >= warm and (number - warm) % stretch == 0:
            loss.item()  # waits for the device
            ticks.append(time.perf_counter())
    taken = statistics.median(end - begun for begun, end in pairwise(ticks))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"images_per_second": stretch * recipe.batch_size / taken, "peak_memory_bytes": peak}
