"""What bad input to the public API is made of: a small network, odd weights, files with anything inside."""

import math
import warnings

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


def scripted(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit
        return torch.jit.script(nn.Sequential(*net))


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


# presets, functions that choose branches, the one call, and real branches
PRESET_CALLS = {
    "plan by an unknown preset": lambda net: repopt.plan(net, "resnet"),
    "plan by an empty preset": lambda net: repopt.plan(net, ""),
    "plan by two presets": lambda net: repopt.plan(net, ["repvgg", "acnet"]),
    "plan by a preset that finds nothing": lambda net: repopt.plan(nn.Sequential(nn.Linear(2, 2)), "repvgg"),
    "plan by a preset for even kernels alone": lambda net: repopt.plan(nn.Conv2d(3, 3, 4), "acnet"),
    "plan by a preset as bytes": lambda net: repopt.plan(net, b"repvgg"),
    "plan by a number": lambda net: repopt.plan(net, 3),
    "plan by the model": lambda net: repopt.plan(net, net),
    "plan by the class of a branch": lambda net: repopt.plan(net, Conv),
    "plan by a function that chooses nothing": lambda net: repopt.plan(net, lambda name, module: None),
    "plan by a function that says yes": lambda net: repopt.plan(net, lambda name, module: True),
    "plan by a function that names a preset": lambda net: repopt.plan(net, lambda name, module: "repvgg"),
    "plan by a function that chooses one branch": lambda net: repopt.plan(net, lambda name, module: Conv(3)),
    "plan by a function that chooses no branch": lambda net: repopt.plan(net, lambda name, module: []),
    "plan by a function that chooses too large": lambda net: repopt.plan(net, lambda name, module: [Conv(5)]),
    "plan pruned weights by a function": lambda net: repopt.plan(pruned(), lambda name, module: CONV3),
    "reparameterize the other way round": lambda net: repopt.reparameterize(sgd(net), net, init=True),
    "reparameterize None": lambda net: repopt.reparameterize(None, sgd(net), init=True),
    "reparameterize without an optimizer": lambda net: repopt.reparameterize(net, None, init=False),
    "reparameterize with init None": lambda net: repopt.reparameterize(net, sgd(net), init=None),
    "reparameterize with init in words": lambda net: repopt.reparameterize(net, sgd(net), init="authors"),
    "reparameterize with init 1": lambda net: repopt.reparameterize(net, sgd(net), init=1),
    "reparameterize without scales": lambda net: repopt.reparameterize(net, sgd(net), scales=None, init=True),
    "reparameterize with unknown scales": lambda net: repopt.reparameterize(net, sgd(net), scales="deep", init=True),
    "reparameterize an unknown preset": lambda net: repopt.reparameterize(net, sgd(net), "vgg", init=True),
    "reparameterize what declares nothing": lambda net: repopt.reparameterize(net, sgd(net), None, init=True),
    "reparameterize some of the weights": lambda net: repopt.reparameterize(net, sgd(net[0]), init=True),
    "reparameterize twice": lambda net: [
        repopt.reparameterize(net, optimizer, init=True) for optimizer in [sgd(net)] * 2
    ],
    "branch_model of None": lambda net: repopt.branch_model(None, net.plan),
    "branch_model without a plan": lambda net: repopt.branch_model(net, "repvgg"),
    "branch_model of another model": lambda net: repopt.branch_model(nn.Linear(1, 1), net.plan),
    "branch_model with an unknown norm": lambda net: repopt.branch_model(net, net.plan, "layer"),
    "branch_model with the class of a norm": lambda net: repopt.branch_model(net, net.plan, nn.BatchNorm2d),
    "branch_model with norm None": lambda net: repopt.branch_model(net, net.plan, None),
    "branch_model with norm NaN": lambda net: repopt.branch_model(net, net.plan, math.nan),
    "branch_model by an unknown convention": lambda net: repopt.branch_model(net, net.plan, kernel="ones"),
    "branch_model with a seed for a generator": lambda net: repopt.branch_model(net, net.plan, generator=0),
    "branch_model twice": lambda net: repopt.branch_model(repopt.branch_model(net, net.plan), net.plan),
    "merge of norms without statistics": lambda net: repopt.merge(without_statistics(net)),
}


def without_statistics(net):
    real = repopt.branch_model(net, net.plan)
    real[0].norms["conv3x3"] = nn.BatchNorm2d(6, track_running_stats=False)
    return real
