"""Detection: torchvision's FCOS on a RepOpt backbone.

    python examples/detect.py --images val2017 --annotations annotations/instances_val2017.json

trains on COCO's layout. Without arguments: made-up squares, in seconds on a CPU. `--backbone` may be the folder of a
finished run, whose weights then stay. Needs torchvision, torchmetrics and faster-coco-eval.
"""

from collections import OrderedDict
from pathlib import Path

import faster_coco_eval
import torch
import tyro
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection import FCOS
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7
from torchvision.transforms import v2

import repopt
from repopt.models import deploy


class Pyramid(nn.Module):
    """A backbone of repopt or timm as torchvision's detectors take it."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.out_channels = body, width
        self.fpn = FeaturePyramidNetwork(body.feature_info.channels(), width, LastLevelP6P7(width, width))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(level), each) for level, each in enumerate(self.body(x))))


def coco(images: Path, annotations: Path) -> torch.utils.data.Dataset:
    faster_coco_eval.init_as_pycocotools()
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes()]
    data = wrap_dataset_for_transforms_v2(CocoDetection(images, annotations, transforms=v2.Compose(steps)))
    return torch.utils.data.Subset(data, [i for i, key in enumerate(data.ids) if data.coco.getAnnIds(key)])


def square() -> tuple[Tensor, dict[str, Tensor]]:
    image, (x, y, side) = torch.rand(3, 64, 64) / 4, torch.randint(8, 32, (3,)).tolist()
    image[:, y : y + side, x : x + side] += 0.7
    return image, {"boxes": torch.tensor([[x, y, x + side, y + side]]).float(), "labels": torch.ones(1).long()}


def main(
    images: Path | None = None, annotations: Path | None = None, backbone: str = "repopt_vgg_nano", epochs: int = 4
) -> None:
    torch.manual_seed(0)
    data = coco(images, annotations) if images and annotations else [square() for _ in range(16)]
    body = repopt.create_model(backbone, features_only=True, out_indices=(2, 3, 4))
    detector = FCOS(Pyramid(body, 64), 91 if images else 2, min_size=data[0][0].shape[1])
    nn.init.ones_(detector.head.regression_head.bbox_reg.bias)  # behind a ReLU: from 0, sides of boxes may never learn
    plan = repopt.plan(detector, scales="ones")  # of the backbone, which declares its branches
    if not Path(backbone).is_dir():
        plan.init_()
    optimizer = torch.optim.SGD(repopt.decay_groups(detector, 1e-4), lr=0.005, momentum=0.9)
    repopt.attach(optimizer, plan)
    for epoch in range(epochs):
        for batch in torch.randperm(len(data)).split(4):
            loss = sum(detector(*zip(*(data[i] for i in batch), strict=True)).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    detector, metric = deploy(detector).eval().requires_grad_(False), MeanAveragePrecision(backend="faster_coco_eval")
    for picture, target in data:
        metric.update(detector([picture]), [target])
    print(f"AP {metric.compute()['map'].item():.3f} on the training images")


if __name__ == "__main__":
    tyro.cli(main)
