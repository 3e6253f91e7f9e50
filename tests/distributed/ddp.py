"""Trains a small net on this rank's half of each batch, and saves rank 0's weights."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import repopt
from repopt import Conv, Identity, Linear
from repopt.verification.cases import mixed_sign_scales


def net_and_plan():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 5),
    ).double()
    return net, repopt.plan(net, {"0|2": [Conv(3), Conv(1), Identity()], "5": [Linear(), Linear()]})


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def wrapped(net):
    return DistributedDataParallel(net, gradient_as_bucket_view=True) if dist.get_world_size() > 1 else net


def take_steps(model, optimizer, steps):
    for step in steps:
        data = torch.Generator().manual_seed(2 + step)
        whole = torch.randn(8, 3, 8, 8, generator=data, dtype=torch.float64)
        optimizer.zero_grad()
        model(whole.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
        optimizer.step()


def train_half(out):
    net, bare = net_and_plan()
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_(generator=torch.Generator().manual_seed(1))
    model = wrapped(net)
    optimizer = sgd(model)
    repopt.attach(optimizer, plan)
    take_steps(model, optimizer, range(50))
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), out)


def freeze_half(out):
    """Searches for ten steps and goes on for thirty: frozen, and as the search model whose scales are not trained."""
    net, plan = net_and_plan()
    search = repopt.search_model(net, plan, start=mixed_sign_scales(plan), generator=torch.Generator().manual_seed(1))
    model = wrapped(search)
    optimizer = sgd(search)
    take_steps(model, optimizer, range(10))
    optimizer.zero_grad()
    fixed, reference = copy.deepcopy((search, optimizer))
    for name, param in fixed.named_parameters():
        param.requires_grad_("scales" not in name)
    if model is not search:
        with pytest.raises(
            ValueError, match=r"freeze the model inside it, search\.module, and wrap the plain model anew"
        ):
            repopt.freeze(model, optimizer)
    plain, optimizer, _ = repopt.freeze(search, optimizer)
    take_steps(wrapped(plain), optimizer, range(10, 40))
    take_steps(wrapped(fixed), reference, range(10, 40))
    if dist.get_rank() == 0:
        torch.save({"plain": plain.state_dict(), "fixed": repopt.merge(fixed).state_dict()}, out)
