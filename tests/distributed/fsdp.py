"""Trains a net of awkward shapes, sharded if there is more than one rank, and saves its full weights.

`run_all` writes FOLDER/WAY.pt for each way of training, and FOLDER/WAY-resumed.pt for those that
torch.distributed.checkpoint saves halfway and that go on from there in new objects.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import repopt
from repopt import Conv, Identity, Linear
from repopt.verification.cases import mixed_sign_scales


def build():
    """Rows that do not divide by two, groups that a shard cuts, finer groups, one output channel."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False),
        nn.ReLU(),
        nn.Conv2d(6, 7, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(7, 7, 1),
        nn.Conv2d(7, 1, 3, padding=1),
        nn.Flatten(),
        nn.Linear(16, 5),
    ).double()
    bare = repopt.plan(
        net,
        {
            r"^[024]$": [Conv(3), Conv(1), Identity()],
            "^6$": [Conv(1), Conv(1, groups=7), Identity()],
            "^7$": [Conv(3), Conv(1)],
            "^9$": [Linear(), Linear()],
        },
    )
    plan = bare.with_scales(mixed_sign_scales(bare))
    if dist.get_world_size() > 1:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for index in (2, 4, 6, 7):
            fully_shard(net[index], mesh=mesh)
        fully_shard(net, mesh=mesh)
    plan.init_(generator=torch.Generator().manual_seed(1))
    return net, plan


def optimizer_for(way, net, plan):
    if way == "grad":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
        repopt.attach(optimizer, plan)
        return optimizer
    if way == "lion":
        return repopt.optim.Lion(net.parameters(), plan, lr=0.003, weight_decay=0.1)
    return repopt.optim.AdamW(net.parameters(), plan, lr=0.01, eps=1e-3, foreach=way == "foreach")


def train(net, plan, optimizer, steps):
    world, rank = dist.get_world_size(), dist.get_rank()
    norms = []
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(4, 3, 4, 4, generator=draw, dtype=torch.float64).chunk(world)[rank]
        optimizer.zero_grad()
        (net(x) - 1).square().mean().backward()
        norms.append(repopt.clip_grad_norm_(plan, 0.05).item())
        optimizer.step()
    return norms


def run(way, out, checkpoint=None):
    net, plan = build()
    optimizer = optimizer_for(way, net, plan)
    norms = train(net, plan, optimizer, range(20))
    if checkpoint is not None:
        weights, state = get_state_dict(net, optimizer)
        dcp.save({"weights": weights, "state": state}, checkpoint_id=checkpoint)
        net, plan = build()
        optimizer = optimizer_for(way, net, plan)
        weights, state = get_state_dict(net, optimizer)
        saved = {"weights": weights, "state": state}
        dcp.load(saved, checkpoint_id=checkpoint)
        set_state_dict(net, optimizer, model_state_dict=saved["weights"], optim_state_dict=saved["state"])
    norms += train(net, plan, optimizer, range(20, 40))
    whole = {
        name: (param.full_tensor() if isinstance(param, DTensor) else param).detach()
        for name, param in net.named_parameters()
    }
    if dist.get_rank() == 0:
        torch.save({"weights": whole, "norms": torch.tensor(norms, dtype=torch.float64)}, out)


def run_all(folder):
    for way in ("grad", "closed", "foreach", "lion"):
        run(way, folder / f"{way}.pt")
    if dist.get_world_size() > 1:
        for way in ("grad", "closed"):
            run(way, folder / f"{way}-resumed.pt", folder / f"{way}-checkpoint")
