"""Scales learned on the way: a search model for three tenths of the training, the plain model from then on.

Three lines more than a plain loop, marked 1, 2 and 3. The optimizer stays the same object, so the schedule goes on.
Runs in seconds on a CPU.
"""

import torch
from torch import nn

import repopt
from repopt import Conv, Identity

STEPS = 50

torch.manual_seed(0)
net: nn.Module = nn.Sequential(
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
net = repopt.search_model(net, repopt.plan(net, {r"^[03]$": [Conv(3), Conv(1), Identity()]}))  # 1
groups = repopt.decay_groups(net, 1e-4, scale_lr=1.0)  # scales learn better ten times as fast
optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for step in range(STEPS):
    if step == 3 * STEPS // 10:  # 2
        net, optimizer, handle = repopt.freeze(net, optimizer)  # 3
    labels = torch.randint(4, (32,))
    images = torch.randn(32, 3, 16, 16) + labels.view(-1, 1, 1, 1)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    schedule.step()

print(f"loss {loss.item():.3f}, learning rate {schedule.get_last_lr()[0]:.3f}")
print(handle.plan)  # the scales that were learned: handle.plan.scales.save("net.safetensors") keeps them
