"""accelerate: attach first, then `prepare`; the loop is accelerate's as ever.

Clipping belongs into `attach`: leave `accelerator.clip_grad_norm_` out. Runs in seconds on a CPU.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import repopt
from repopt import Conv, Identity

torch.manual_seed(0)
labels = torch.randint(4, (64,))
images = torch.randn(64, 3, 16, 16) + labels.view(-1, 1, 1, 1)
net = nn.Sequential(
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
plan = repopt.plan(net, {r"^[03]$": [Conv(3), Conv(1), Identity()]}, scales="ones")
plan.init_()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
repopt.attach(optimizer, plan, max_norm=1.0)  # before prepare, which wraps the optimizer

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, stepper, loader = accelerator.prepare(net, optimizer, DataLoader(TensorDataset(images, labels), batch_size=16))
for epoch in range(4):
    for batch, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), targets)
            accelerator.backward(loss)
            stepper.step()
            stepper.zero_grad()
    if epoch == 1:
        accelerator.save_state("runs/half")  # and accelerator.load_state("runs/half") goes on from there
print(f"loss {loss.item():.3f}")
