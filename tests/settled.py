"""What the tests of the models share."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import repopt


def count(model):
    return sum(param.numel() for param in model.parameters())


def settle(model, seed=0):
    """Norms as after some training: statistics, gammas and betas away from where they start."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            for tensor, low, high in (
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.5, 0.5),
            ):
                tensor.copy_(torch.empty(tensor.shape).uniform_(low, high, generator=draw))
    return model


def five_steps(model, plan):
    plan.init_()
    optimizer = torch.optim.SGD(repopt.decay_groups(model, 4e-5), lr=0.01, momentum=0.9, nesterov=True)
    repopt.attach(optimizer, plan)
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.tensor(losses).isfinite())
    assert losses[-1] < losses[0]
