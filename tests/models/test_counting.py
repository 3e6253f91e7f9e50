import torch
from torch import nn

from repopt.models.counting import multiply_adds, parameters


def test_a_model_is_counted_as_it_is_evaluated_and_stays_as_it_was():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 16 * 16, 4))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert multiply_adds(net, size=16) == 8 * 3 * 9 * 16 * 16 + 8 * 16 * 16 * 4
    assert parameters(net) == 8 * 3 * 9 + 8 + 16 + 8 * 16 * 16 * 4 + 4
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
