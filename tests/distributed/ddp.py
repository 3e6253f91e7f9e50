"""Trains a small net on this rank's half of each batch, and saves rank 0's weights."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import repopt
from repopt import Conv, Identity, Linear
from repopt.verification.cases import mixed_sign_scales


def train_half(out):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 5),
    ).double()
    bare = repopt.plan(net, {"0|2": [Conv(3), Conv(1), Identity()], "5": [Linear(), Linear()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_(generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(net, gradient_as_bucket_view=True) if world > 1 else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    repopt.attach(optimizer, plan)
    data = torch.Generator().manual_seed(2)
    for _ in range(50):
        x = torch.randn(8, 3, 8, 8, generator=data, dtype=torch.float64).chunk(world)[rank]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(net.state_dict(), out)
