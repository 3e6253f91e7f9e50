"""Lightning: the optimizer is made and attached in `configure_optimizers`; the rest is Lightning as ever.

Clipping belongs into `attach`: leave the Trainer's `gradient_clip_val` out. Runs in seconds on a CPU.
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import repopt
from repopt import Conv, Identity


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        )
        self.plan = repopt.plan(self.net, {r"^[03]$": [Conv(3), Conv(1), Identity()]}, scales="ones")
        self.plan.init_()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        repopt.attach(optimizer, self.plan, max_norm=1.0)
        return optimizer

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)


if __name__ == "__main__":
    torch.manual_seed(0)
    labels = torch.randint(4, (64,))
    images = torch.randn(64, 3, 16, 16) + labels.view(-1, 1, 1, 1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, enable_checkpointing=False, **options)
    trainer.fit(Classifier(), loader)
    trainer.save_checkpoint("runs/half.ckpt")
    trainer = lightning.Trainer(max_epochs=4, accumulate_grad_batches=2, enable_checkpointing=False, **options)
    trainer.fit(Classifier(), loader, ckpt_path="runs/half.ckpt")  # the scales are checked: others are refused
    print(f"{trainer.global_step} steps")
