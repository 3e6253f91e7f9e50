"""A plain network, trained with plain SGD."""

import torch
from torch import nn

torch.manual_seed(0)
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
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(10):
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(4, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()
