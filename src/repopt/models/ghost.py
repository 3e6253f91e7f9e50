"""RepGhostNet and RepOpt-GhostNet (appendix D): a light net whose modules have one cheap, depthwise 3x3 convolution.

    RepGhost          Y  =  BN(X * W) + BN(X)           the fusion branch beside the cheap operation, folded afterwards
    RepOpt-GhostNet   Y  =  BN(X * W')                  plain; W' imagines s * W and the identity, BN after the sum

X is what a 1x1 convolution, a norm and, in a block's first module, a ReLU have made. Module names are those of the
public RepGhost code, which timm's and the authors' models share.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from repopt.algebra.branches import Branch, Conv, Identity
from repopt.algebra.csla import Convention
from repopt.models.folding import Foldable
from repopt.models.squeeze import SqueezeExcite
from repopt.models.staged import Pooling, StagedNet, Stride, dilated, draw_convolutions_
from repopt.surgery.norms import norm_affine

GHOST_WIDTHS: Mapping[str, float] = {
    "050": 0.5,
    "058": 0.58,
    "080": 0.8,
    "100": 1.0,
    "111": 1.11,
    "130": 1.3,
    "150": 1.5,
    "200": 2.0,
}

# a block: kernel of the strided depthwise convolution, channels inside, channels out, squeeze and excitation, stride
_BLOCKS: tuple[tuple[tuple[int, int, int, bool, int], ...], ...] = (
    ((3, 8, 16, False, 1),),
    ((3, 24, 24, False, 2),),
    ((3, 36, 24, False, 1),),
    ((5, 36, 40, True, 2),),
    ((5, 60, 40, True, 1),),
    ((3, 120, 80, False, 2),),
    (
        (3, 100, 80, False, 1),
        (3, 120, 80, False, 1),
        (3, 120, 80, False, 1),
        (3, 240, 112, True, 1),
        (3, 336, 112, True, 1),
    ),
    ((5, 336, 160, True, 2),),
    ((5, 480, 160, False, 1), (5, 480, 160, True, 1), (5, 480, 160, False, 1), (5, 480, 160, True, 1)),
)
_LAST_OF_RESOLUTION = (0, 2, 4, 6, 8)
_STEM, _HEAD = 16, 1280


class GhostModule(Foldable):
    """A 1x1 convolution and a cheap depthwise 3x3 one, each with a norm.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        relu: after each of the two.
        fusion: a norm beside the cheap operation, as in RepGhost.
        dilation: of the cheap operation.
    """

    norm_pairs = (("primary_conv.0", "primary_conv.1"), ("cheap_operation.0", "cheap_operation.1"))

    def __init__(self, in_channels: int, out_channels: int, *, relu: bool, fusion: bool, dilation: int) -> None:
        super().__init__()
        self.primary_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU() if relu else nn.Identity(),
        )
        self.fusion_bn = nn.Sequential(nn.BatchNorm2d(out_channels)) if fusion else nn.Sequential()
        self.cheap_operation = nn.Sequential(
            _depthwise(out_channels, 3, 1, dilation),
            nn.BatchNorm2d(out_channels),
        )
        self.relu = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.primary_conv(x)
        y = self.cheap_operation(x)
        for norm in self.fusion_bn:
            y = y + norm(x)
        activated: Tensor = self.relu(y)
        return activated

    @torch.no_grad()
    def switch_to_deploy(self) -> None:
        super().switch_to_deploy()
        cheap = self.cheap_operation.get_submodule("0")
        assert isinstance(cheap, nn.Conv2d)
        assert cheap.bias is not None
        for norm in self.fusion_bn:
            scale, shift = norm_affine(norm, like=cheap.bias)
            cheap.weight[:, 0, 1, 1] += scale
            cheap.bias += shift
        self.fusion_bn = nn.Sequential()


class GhostBottleneck(Foldable):
    """Two ghost modules, between them a strided depthwise convolution and squeeze and excitation, and a shortcut.

    Args:
        channels: of the input, inside, and of the output.
        kernel_size: of the strided depthwise convolution.
        stride: 1, or 2 for a block that has it.
        taken: the stride that it takes, and the dilation before and behind it.
        se: squeeze and excitation.
        fusion: norms beside the cheap operations.
    """

    def __init__(
        self, channels: tuple[int, int, int], kernel_size: int, stride: int, taken: Stride, *, se: bool, fusion: bool
    ) -> None:
        super().__init__()
        outer, inner, last = channels
        self.ghost1 = GhostModule(outer, inner, relu=True, fusion=fusion, dilation=taken.dilation)
        self.conv_dw: nn.Module = nn.Identity()
        self.bn_dw: nn.Module = nn.Identity()
        if stride > 1:
            self.conv_dw, self.bn_dw = _depthwise(inner, kernel_size, *taken[:2]), nn.BatchNorm2d(inner)
        gated = SqueezeExcite(inner, _divisible(inner / 4), nn.Hardsigmoid()) if se else None
        self.se: nn.Module = nn.Identity() if gated is None else gated
        self.ghost2 = GhostModule(inner, last, relu=False, fusion=fusion, dilation=taken.dilation_after)
        self.shortcut = nn.Sequential()
        self.norm_pairs = (("conv_dw", "bn_dw"),)
        self.keeps_shape = stride == 1 and outer == last
        if not self.keeps_shape:
            self.shortcut = nn.Sequential(
                _depthwise(outer, kernel_size, *taken[:2]),
                nn.BatchNorm2d(outer),
                nn.Conv2d(outer, last, 1, bias=False),
                nn.BatchNorm2d(last),
            )
            self.norm_pairs += (("shortcut.0", "shortcut.1"), ("shortcut.2", "shortcut.3"))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ghost2(self.se(self.bn_dw(self.conv_dw(self.ghost1(x))))) + self.shortcut(x)
        return y


class _ConvNorm(Foldable):
    """A 1x1 convolution, a norm and a ReLU."""

    norm_pairs = (("conv", "bn1"),)

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.act1 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act1(self.bn1(self.conv(x)))
        return y


class RepGhostNet(StagedNet):
    """RepGhostNet, the network with real fusion branches.

    Args:
        width: factor on all channels but the head's.
        num_classes: outputs; 0 leaves the classifier out.
        in_chans: input channels.
        output_stride: 8, 16 or 32: strides beyond it become dilation, for dense prediction.
        dropout: probability before the classifier.
        global_pool: `avg`, or nothing: then the head gives the last map.
        kernel: how convolutions start: `authors` (torch's default) or `paper` (MSRA).
        deploy: build the deploy form, for weights that are saved in it.
    """

    fusion = True
    head_name = "classifier"
    norm_pairs = (("conv_stem", "bn1"),)

    def __init__(
        self,
        width: float,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        output_stride: int | None = None,
        dropout: float = 0.2,
        global_pool: Pooling = "avg",
        kernel: Convention = "authors",
        deploy: bool = False,
    ) -> None:
        super().__init__(num_classes=num_classes, in_chans=in_chans, dropout=dropout, global_pool=global_pool)
        if not isinstance(width, int | float) or not 0 < width < math.inf:
            raise ValueError(f"width must be a positive number, not {width!r}")
        channels = _divisible(_STEM * width)
        self.conv_stem = nn.Conv2d(in_chans, channels, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.act1 = nn.ReLU()
        strides = [stride for blocks in _BLOCKS for *_, stride in blocks]
        (reduction, _, _), *taken = dilated([2, *strides], output_stride)
        left, stages, self.feature_info = iter(taken), [], []
        for index, blocks in enumerate(_BLOCKS):
            stage = nn.Sequential()
            for kernel_size, inside, outside, se, stride in blocks:
                sizes = (channels, _divisible(inside * width), _divisible(outside * width))
                each = next(left)
                stage.append(GhostBottleneck(sizes, kernel_size, stride, each, se=se, fusion=self.fusion))
                channels, reduction = sizes[-1], reduction * each.stride
            stages.append(stage)
            if index in _LAST_OF_RESOLUTION:
                self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": f"blocks.{index}"})
        self.num_features = _divisible(_BLOCKS[-1][-1][1] * width * 2)
        stages.append(nn.Sequential(_ConvNorm(channels, self.num_features)))
        self.blocks = nn.Sequential(*stages)
        self.steps = ("conv_stem", "bn1", "act1", *(f"blocks.{index}" for index in range(len(stages))))
        self.conv_head = nn.Conv2d(self.num_features, _HEAD, 1)
        self.act2 = nn.ReLU()
        self.head_hidden_size = _HEAD
        draw_convolutions_(self, kernel)
        self.reset_classifier(num_classes)
        if deploy:
            self.switch_to_deploy()

    def pre_classifier(self, x: Tensor) -> Tensor:
        y: Tensor = self.act2(self.conv_head(x))
        return y


class RepOptGhostNet(RepGhostNet):
    """The plain network, trained as if every module had an identity beside its cheap operation."""

    fusion = False
    imagined: Mapping[str, list[Branch]] = {r"\.cheap_operation\.0$": [Conv(3), Identity()]}

    def repopt_depths(self) -> dict[str, int]:
        """Counts modules, two a block, from 2 in each block that changes the shape, as the authors' code does."""
        depths, depth = {}, 1
        for name, block in self.named_modules():
            if isinstance(block, GhostBottleneck):
                depth = depth if block.keeps_shape else 1
                for module in ("ghost1", "ghost2"):
                    depth += 1
                    depths[f"{name}.{module}.cheap_operation.0"] = depth
        return depths


def _depthwise(channels: int, kernel_size: int, stride: int, dilation: int) -> nn.Conv2d:
    padding = kernel_size // 2 * dilation
    return nn.Conv2d(channels, channels, kernel_size, stride, padding, dilation, groups=channels, bias=False)


def _divisible(channels: float) -> int:
    """The nearest multiple of 4 that is not more than a tenth smaller, and at least 4."""
    nearest = max(4, math.floor(channels / 4 + 0.5) * 4)
    return nearest if nearest >= 0.9 * channels else nearest + 4
