"""Detection: torchvision's FCOS on a RepOpt backbone.

    python examples/detect.py --coco COCO

trains on COCO/train2017; `--classes` is one more than the highest category. Without arguments: made-up squares.
`--backbone` may be a finished run of a plain model: weights, normalization stay. Needs torchmetrics, faster-coco-eval.
"""

import json
from collections import OrderedDict
from pathlib import Path

import faster_coco_eval
import torch
import tyro
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection import FCOS
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7
from torchvision.transforms import v2

import repopt


class Pyramid(nn.Module):
    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.out_channels = body, width
        self.fpn = FeaturePyramidNetwork(body.feature_info.channels(), width, LastLevelP6P7(width, width))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(level), each) for level, each in enumerate(self.body(x))))


def boxed(coco: Path) -> torch.utils.data.Dataset:
    faster_coco_eval.init_as_pycocotools()
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, True), v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()]
    files = coco / "train2017", coco / "annotations" / "instances_train2017.json"
    data = wrap_dataset_for_transforms_v2(CocoDetection(*files, transforms=v2.Compose(steps)))
    return torch.utils.data.Subset(data, [i for i, key in enumerate(data.ids) if data.coco.getAnnIds(key)])


def square() -> tuple[Tensor, dict[str, Tensor]]:
    image, (x, y, side) = torch.rand(3, 64, 64) / 4, torch.randint(8, 32, (3,)).tolist()
    image[:, y : y + side, x : x + side] += 0.7
    return image, {"boxes": torch.tensor([[x, y, x + side, y + side]]).float(), "labels": torch.ones(1).long()}


def main(coco: Path | None = None, classes: int = 91, backbone: str = "repopt_vgg_nano", epochs: int = 4) -> None:
    torch.manual_seed(0)
    data = boxed(coco) if coco else [square() for _ in range(16)]
    body = Pyramid(repopt.create_model(backbone, features_only=True, out_indices=(2, 3, 4)), width=64)
    detector = FCOS(body, classes, min_size=data[0][0].shape[1])
    nn.init.ones_(detector.head.regression_head.bbox_reg.bias)  # behind a ReLU: from 0, sides of boxes may never learn
    plan = repopt.plan(detector, scales="ones")  # of the backbone, which declares its branches
    if Path(backbone).is_dir():
        run = json.loads(Path(backbone, "config.json").read_text())
        detector.transform.image_mean, detector.transform.image_std = run["mean"], run["std"]
    else:
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
    detector = repopt.models.deploy(detector).eval().requires_grad_(False)
    metric = MeanAveragePrecision(backend="faster_coco_eval")
    for picture, target in data:
        metric.update(detector([picture]), [target])
    print(f"AP {metric.compute()['map'].item():.3f} on the training images")


if __name__ == "__main__":
    tyro.cli(main)
