"""Trains for 50 steps and saves the weights; or stops after 20, or goes on from there.

python resume.py WAY whole OUT | python resume.py WAY first CHECKPOINT | python resume.py WAY second CHECKPOINT OUT
"""

import sys

import torch

from side_by_side import WAYS, planned, small_net, train

way, part, *files = sys.argv[1:]
torch.manual_seed(0)
net = small_net()
plan = planned(net)
plan.init_()
optimizer = WAYS[way].start(net.parameters(), plan)
if part == "second":
    saved = torch.load(files[0], weights_only=True)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
train(net, optimizer, {"whole": 50, "first": 20, "second": 30}[part], first=20 if part == "second" else 0)
if part == "first":
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, files[0])
else:
    torch.save(net.state_dict(), files[-1])
