"""Search models whose freezing is tested, and the optimizer of most of them."""

import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.surgery.conversion import search_blocks


class Normed(nn.Module):
    """Strided, depthwise, grouped and dilated convolutions, biases, norms, and two Linears, one of them not planned."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.late = nn.GroupNorm(2, 8)
        self.dilated = nn.Conv2d(8, 8, 5, padding=4, dilation=2, padding_mode="reflect")
        self.fc = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        x = self.late(self.grouped(self.depthwise(x))).relu()
        return self.head(self.fc(self.dilated(x).relu().mean((2, 3))))


BRANCHES = {
    "stem": [Conv(3), Conv(1), Identity()],
    "depthwise": [Conv(3), Identity()],
    "grouped": [Conv(3), Conv(1, groups=4), Identity()],
    "dilated": [Conv(3, dilation=2), Conv(3), Conv(1)],  # none of them covers it
    "fc": [Linear(), Identity()],
}
NETS = {
    "vgg": lambda: (repopt.create_model("repopt_vgg_nano", num_classes=5), None),
    "ghost": lambda: (repopt.create_model("repopt_ghostnet_050", num_classes=5, dropout=0), None),
    "own": lambda: (Normed(), BRANCHES),
}
NESTEROV = {"momentum": 0.9, "nesterov": True}
DAMPED = {"momentum": 0.8, "nesterov": False, "dampening": 0.3, "maximize": True}


def searching(kind="own"):
    """A search model in float64 whose scales are all different."""
    torch.manual_seed(0)
    net, branches = NETS[kind]()
    net.double()
    search = repopt.search_model(net, repopt.plan(net, branches))
    with torch.no_grad():
        for block in search_blocks(search).values():
            for scale in (*block.scales.values(), *(k for k in block.kernels.values() if k.ndim == 1)):
                scale.mul_(1 + 0.2 * torch.randn_like(scale))
    return search


def sgd(model, **options):
    return torch.optim.SGD(repopt.decay_groups(model, 1e-2), **{"lr": 0.01, **NESTEROV, **options})
