"""YOLOv6 of ultralytics with a RepOptimizer: override `build_optimizer`, and leave the clipping to the step.

    python examples/detect_yolo.py --data coco128.yaml --epochs 100

yolov6n.yaml is a plain network: 3x3 convolutions, each with a batch norm and a ReLU. Without arguments it trains on
made-up squares. Needs `pip install ultralytics`, which is licensed under AGPL-3.0: read what that means for your code
before you use it. repopt does not depend on it.
"""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

import torch
import tyro
from torch import nn
from torchvision.transforms.functional import to_pil_image
from ultralytics.models.yolo.detect import DetectionTrainer

import repopt
from repopt import Conv, Identity

# every 3x3 convolution before the head; 10 and 15 are 1x1
BRANCHES = {r"^model\.(?!10\.|15\.)\d+(\.\d+)?\.conv$": [Conv(3), Conv(1), Identity()]}


class RepOptTrainer(DetectionTrainer):
    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> nn.Module:
        self.from_scratch = weights is None
        return super().get_model(cfg, weights, verbose)

    def build_optimizer(self, model: nn.Module, *args: Any, **options: Any) -> torch.optim.Optimizer:
        self.plan = repopt.plan(model, BRANCHES, scales="ones")
        if self.from_scratch:  # trained weights stay; new ones are the same on every rank
            self.plan.init_(generator=torch.Generator().manual_seed(self.args.seed))
        optimizer = super().build_optimizer(model, *args, **options)
        repopt.attach(optimizer, self.plan, max_norm=10.0)
        return optimizer

    def optimizer_step(self) -> None:
        with patch("torch.nn.utils.clip_grad_norm_"):  # clips by another norm than the blocks'; the step does it
            super().optimizer_step()


def squares(folder: Path) -> Path:
    """A data set of one class in the layout of ultralytics."""
    for part in ("images", "labels"):
        (folder / part).mkdir()
    for index in range(8):
        image, (x, y, side) = torch.rand(3, 64, 64) / 4, torch.randint(8, 32, (3,)).tolist()
        image[:, y : y + side, x : x + side] += 0.7
        to_pil_image(image).save(folder / "images" / f"{index}.png")
        centre = f"{(x + side / 2) / 64} {(y + side / 2) / 64} {side / 64} {side / 64}"
        (folder / "labels" / f"{index}.txt").write_text(f"0 {centre}\n")
    described = folder / "data.yaml"
    described.write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [square]\n")
    return described


def main(data: str | None = None, model: str = "yolov6n.yaml", epochs: int = 2) -> None:
    torch.manual_seed(0)
    options = {"model": model, "data": data, "epochs": epochs, "optimizer": "SGD"}  # `auto` may choose Muon
    if data is None:
        folder = Path(mkdtemp())
        options |= {"data": str(squares(folder)), "project": str(folder), "imgsz": 64, "batch": 4, "device": "cpu"}
    trainer = RepOptTrainer(overrides=options)
    trainer.train()
    print(f"{len(trainer.plan.operators)} convolutions planned")


if __name__ == "__main__":
    tyro.cli(main)
