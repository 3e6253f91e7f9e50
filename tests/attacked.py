"""What bad input to the public API is made of: a small network, odd weights, files with anything inside."""

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import repopt
from repopt import Conv, Identity

CONV3 = [Conv(3), Conv(1), Identity()]


class Small(nn.Sequential):
    """What each row attacks: `net[0]` and `net[2]` are planned."""

    def __init__(self, **options):
        super().__init__(
            nn.Conv2d(3, 6, 3, padding=1, **options), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, **options), nn.Flatten()
        )
        self.plan = repopt.plan(self, {"0|2": CONV3}, scales="ones") if not options else None


class Declares(Small):
    """Declares something as its branches, or as its depths."""

    def __init__(self, branches=None, depths=None):
        super().__init__()
        self.declared, self.depths = branches, depths

    def repopt_branches(self):
        return self.declared

    def repopt_depths(self):
        return self.depths


def sgd(net, lr=0.1):
    return torch.optim.SGD(net.parameters(), lr=lr)


def make_sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def with_weight(weight):
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].weight = weight
    return net


def non_leaf():
    net = nn.Sequential(nn.Linear(2, 2))
    del net[0].weight
    net[0].weight = torch.ones(2, 2, requires_grad=True) * 2
    return net


def pruned():
    net = Small()
    prune.identity(net[0], "weight")
    return net


def itself():
    loop = {}
    loop["model"] = loop
    return loop


def file(name, content):
    """A file in the test's folder with these bytes, tensors or pickled things inside."""

    def write(folder):
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif name.endswith(".safetensors"):
            save_file(content, path)
        else:
            torch.save(content, path)
        return path

    return write


def sparse_weight():
    return nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)


def kernels(net, **changes):
    found = net.plan.init_()
    return {**found, "0": {**found["0"], **changes}}


def attached_state(net, state):
    optimizer = sgd(net)
    repopt.attach(optimizer, net.plan)
    optimizer.load_state_dict(state)


def nano(**options):
    return repopt.create_model("repopt_vgg_nano", **options)
