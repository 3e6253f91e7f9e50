"""A network that repopt does not know, named by reference as `other_nets:small`."""

import torch
from torch import nn


def small(num_classes=4, width=8):
    """A full, a depthwise, a grouped and a dilated convolution, and keys that look like another code's."""
    net = nn.Sequential()
    net.stem = _layer(3, width, stride=2)
    net.model = _layer(width, width, groups=width)
    net.grouped = _layer(width, 2 * width, groups=2)
    net.dilated = _layer(2 * width, 2 * width, dilation=2)
    net.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.head = nn.Linear(2 * width, num_classes)
    return net


def _layer(inputs, outputs, *, stride=1, groups=1, dilation=1):
    conv = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation=dilation, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def soft(num_classes=4):
    """With an operator that INT8 files for x86 do not hold."""
    return nn.Sequential(small(num_classes), nn.Softplus())


class WithUnusedHead(nn.Module):
    """One that is there and not called, and logits that are kept."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.net, self.other_head = small(num_classes), nn.Linear(16, 2)

    def forward(self, x):
        self.last = self.net(x)
        return self.last


class Late(nn.Module):
    """A network whose second layer takes part from the second step on."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.head, self.steps = nn.Linear(8, num_classes), 0

    def forward(self, x):
        x = self.first(x)
        if not self.training or self.steps > 0:
            x = self.second(x)
        self.steps += self.training
        return self.head(x.mean((2, 3)))


def flat(num_classes=4):
    """For images of 16 pixels and no others."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 8 * 8, num_classes))


class Four(nn.Module):
    """Without arguments: four classes of RGB images, whatever the data has."""

    def __init__(self):
        super().__init__()
        self.net = small(4)

    def forward(self, x):
        return self.net(x)


def behind_norm(num_classes=4):
    """With a child that is called as wrappers call theirs."""
    net = nn.Sequential()
    net.norm = nn.BatchNorm2d(3)
    net.module = small(num_classes, width=4)
    return net


def passes_on(**options):
    return small(**options)


def first_frozen(num_classes=4):
    net = small(num_classes, width=4)
    net.stem[0].weight.requires_grad_(False)
    return net


def he_drawn(num_classes=4):
    """With one layer that is not as torch draws it."""
    net = small(num_classes)
    nn.init.kaiming_normal_(net.dilated[0].weight)
    return net


class Copying(nn.Module):
    """Normalizes its images."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.net = small(num_classes)

    def forward(self, x):
        return self.net(x.mul(0.5).add(1))


class InPlace(Copying):
    """The same, where they are."""

    def forward(self, x):
        return self.net(x.mul_(0.5).add_(1))


class KeepsNormInEval(Copying):
    """As detectors do, whose `train` returns nothing, and `eval` neither."""

    def train(self, mode=True):
        super().train(mode)
        self.net.stem[1].eval()


class Switched(Copying):
    """Whose `eval` does more than `train(False)`."""

    halved = False

    def eval(self):
        self.halved = True
        return super().eval()

    def forward(self, x):
        return super().forward(x / 2 if self.halved else x)


class PassesOn(nn.Module):
    """Any arguments."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *args, **named):
        return self.net(*args, **named)


class Unshuffled(nn.Module):
    """Takes images of 3 channels, and makes 12 of them."""

    def __init__(self, num_classes=4):
        super().__init__()
        self.in_chans = 12
        self.conv, self.head = nn.Conv2d(12, 8, 3), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.conv(nn.functional.pixel_unshuffle(x, 2)).relu().mean((2, 3)))


def unusual():
    """Networks that compute as any other, each in a way that a program around them may not expect."""
    averaged = torch.optim.swa_utils.AveragedModel(small())
    return {
        **{kind.__name__: kind() for kind in (InPlace, KeepsNormInEval, Switched, Unshuffled)},
        **{"PassesOn": PassesOn(small()), "AveragedModel": averaged},
    }
