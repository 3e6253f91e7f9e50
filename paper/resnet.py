"""A ResNet of basic blocks with the stages of a RepOpt-VGG: what appendix B compares a search model with.

X_n+1  =  ReLU( X_n + BN(conv(ReLU(BN(conv(X_n))))) )
"""

from collections.abc import Sequence

from torch import Tensor, nn


class Addition(nn.Module):
    """The sum of both paths, a module of its own so that a hook sees them."""

    def forward(self, identity: Tensor, residual: Tensor) -> Tensor:
        return identity + residual


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, which is a 1x1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.keeps_shape = in_channels == out_channels and stride == 1
        self.shortcut = nn.Sequential()
        if not self.keeps_shape:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        self.addition = Addition()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.addition(self.shortcut(x), self.residual(x)))
        return y


class ResNet(nn.Sequential):
    """A stem and stages, all with stride 2 at their start, as RepOpt-VGG has them.

    Args:
        depths: the blocks of the stages.
        widths: the channels of the stages.
        stem: the channels before them.
        in_chans: input channels.
    """

    def __init__(self, depths: Sequence[int], widths: Sequence[int], *, stem: int, in_chans: int = 3) -> None:
        super().__init__()
        self.stage0 = nn.Sequential(nn.Conv2d(in_chans, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU())
        before = (stem, *widths)
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            rest = [ResidualBlock(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"stage{number + 1}", nn.Sequential(ResidualBlock(before[number], width, 2), *rest))
