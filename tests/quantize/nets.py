"""What the tests of INT8 share: a small net whose norms have seen images."""

import torch

import repopt


def images(count=32, size=16, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def small_net(family="repopt_vgg", **options):
    torch.manual_seed(0)
    net = repopt.create_model(f"{family}_nano", num_classes=10, depths=(1, 1, 2, 1), **options)
    with torch.no_grad():
        for seed in range(3):
            net(images(64, seed=seed))
    return net.eval()
