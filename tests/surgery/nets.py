"""What the tests of surgery share."""

from torch import nn

import repopt
from repopt.verification.cases import mixed_sign_scales


def planned(net, branches):
    bare = repopt.plan(net, branches)
    return bare.with_scales(mixed_sign_scales(bare))


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, bias=False)
    ).double()
