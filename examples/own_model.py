"""Your own model: choose the branches of each operator, train, and check the equality with the real blocks.

Depthwise, asymmetric, dilated and fully connected branches in one network. Runs in seconds on a CPU.
"""

import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.dw = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.large = nn.Conv2d(16, 16, 7, padding=3)
        self.fc1 = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.large(self.dw(self.stem(x).relu()).relu()).relu()
        return self.head(self.fc1(x.mean((2, 3))).relu())


torch.manual_seed(0)
net = Net()
plan = repopt.plan(
    net,
    {
        r"^stem$": [Conv(3), Conv((1, 3)), Conv((3, 1))],
        r"^dw$": [Conv(3), Identity()],
        r"^large$": [Conv(7), Conv(5), Conv(3, dilation=2)],
        r"^fc1$": [Linear(), Identity()],
    },
    scales="ones",
)
print(plan)

plan.init_()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
repopt.attach(optimizer, plan)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(8, 3, 16, 16)).square().mean().backward()
    optimizer.step()

report = repopt.verify(net, plan, lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9))
print(report)
