"""Squeeze and excitation: each channel is multiplied by a gate that depends on the means of all."""

from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """Means over the map, a layer of fewer neurons, a gate a channel.

    Args:
        channels: of the input.
        neurons: of the layer between.
        gate: what turns its outputs into numbers between 0 and 1.
    """

    def __init__(self, channels: int, neurons: int, gate: nn.Module) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, neurons, 1)
        self.act = nn.ReLU()
        self.conv_expand = nn.Conv2d(neurons, channels, 1)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        gates: Tensor = self.gate(self.conv_expand(self.act(self.conv_reduce(means))))
        return x * gates
