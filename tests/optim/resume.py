"""Goes on with each way of training from where CHECKPOINT left it: python resume.py CHECKPOINT OUT."""

import sys

import torch

from side_by_side import WAYS, planned, small_net, train


def started(way):
    torch.manual_seed(0)
    net = small_net()
    plan = planned(net)
    plan.init_()
    return net, WAYS[way].start(net.parameters(), plan)


if __name__ == "__main__":
    checkpoint, out = sys.argv[1:]
    finished = {}
    for way, saved in torch.load(checkpoint, weights_only=True).items():
        net, optimizer = started(way)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        train(net, optimizer, 30, first=20)
        finished[way] = net.state_dict()
    torch.save(finished, out)
