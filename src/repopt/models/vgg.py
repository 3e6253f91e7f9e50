"""RepOpt-VGG: a stack of 3x3 convolutions, each with a batch norm and a ReLU, and nothing else (Table 1).

Five layers have stride 2: the stem and the first of each of four stages. Global average pooling and a fully connected
layer follow. The model declares the branches that its convolutions imagine: 3x3 + 1x1 + identity, as in RepVGG.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from repopt.branches import Branch, Conv, Identity


@dataclass(frozen=True, kw_only=True)
class VGGSpec:
    """The 3x3 layers and the channels of the four stages."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: int | None = None

    @property
    def stem_width(self) -> int:
        return min(64, self.widths[0]) if self.stem is None else self.stem


_A, _B, _L = (2, 4, 14, 1), (4, 6, 16, 1), (8, 14, 24, 1)

VGG_SPECS: Mapping[str, VGGSpec] = {
    "repopt_vgg_nano": VGGSpec(depths=_B, widths=(16, 24, 32, 128), stem=8),
    "repopt_vgg_a0": VGGSpec(depths=_A, widths=(48, 96, 192, 1280)),
    "repopt_vgg_a1": VGGSpec(depths=_A, widths=(64, 128, 256, 1280)),
    "repopt_vgg_a2": VGGSpec(depths=_A, widths=(96, 192, 384, 1408)),
    "repopt_vgg_b0": VGGSpec(depths=_B, widths=(64, 128, 256, 1280)),
    "repopt_vgg_b1": VGGSpec(depths=_B, widths=(128, 256, 512, 2048)),
    "repopt_vgg_b2": VGGSpec(depths=_B, widths=(160, 320, 640, 2560)),
    "repopt_vgg_b3": VGGSpec(depths=_B, widths=(192, 384, 768, 2560)),
    "repopt_vgg_l1": VGGSpec(depths=_L, widths=(128, 256, 512, 2048)),
    "repopt_vgg_l2": VGGSpec(depths=_L, widths=(160, 320, 640, 2560)),
}


class PlainBlock(nn.Module):
    """3x3 convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.bn(self.conv(x)))
        return y


class RepOptVGG(nn.Module):
    """The plain model, with the authors' module names.

    Args:
        spec: layers and channels.
        num_classes: outputs.
        in_chans: input channels.
    """

    def __init__(self, spec: VGGSpec, num_classes: int = 1000, in_chans: int = 3) -> None:
        super().__init__()
        channels = spec.stem_width
        self.stage0 = PlainBlock(in_chans, channels, stride=2)
        for index, (depth, width) in enumerate(zip(spec.depths, spec.widths, strict=True), start=1):
            blocks = [PlainBlock(width if layer else channels, width, 1 if layer else 2) for layer in range(depth)]
            self.add_module(f"stage{index}", nn.Sequential(*blocks))
            channels = width
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(channels, num_classes)
        self._stages = len(spec.depths) + 1

    def forward(self, x: Tensor) -> Tensor:
        for index in range(self._stages):
            x = self.get_submodule(f"stage{index}")(x)
        logits: Tensor = self.linear(self.gap(x).flatten(1))
        return logits

    def repopt_branches(self) -> dict[str, list[Branch]]:
        return {r"^stage\d+(\.\d+)?\.conv$": [Conv(3), Conv(1), Identity()]}
