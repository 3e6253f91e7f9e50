"""RepOpt-VGG: a stack of 3x3 convolutions, each with a batch norm and a ReLU, and nothing else (Table 1).

The stem and the first layer of each of four stages have stride 2. Global average pooling and a fully connected layer
follow. The model declares the branches that its convolutions imagine: 3x3 + 1x1 + identity, as in RepVGG.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn

from repopt.algebra.branches import Branch, Conv, Identity
from repopt.algebra.csla import Convention
from repopt.models.folding import Foldable
from repopt.models.squeeze import SqueezeExcite
from repopt.models.staged import Pooling, StagedNet, dilated, draw_convolutions_


@dataclass(frozen=True, kw_only=True)
class VGGSpec:
    """The size of a VGG.

    Attributes:
        depths: 3x3 layers of each stage.
        widths: channels of each stage.
        stem: channels of the first layer; at most 64 unless given.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: int | None = None

    def __post_init__(self) -> None:
        sizes = (*self.depths, *self.widths, 1 if self.stem is None else self.stem)
        positive = all(isinstance(size, int) and size > 0 for size in sizes)
        if not self.depths or len(self.depths) != len(self.widths) or not positive:
            raise ValueError(
                f"a VGG needs as many positive whole depths as widths, and such a stem, not depths={self.depths}, "
                f"widths={self.widths}, stem={self.stem}"
            )

    @property
    def stem_width(self) -> int:
        return min(64, self.widths[0]) if self.stem is None else self.stem


_A, _B, _L = (2, 4, 14, 1), (4, 6, 16, 1), (8, 14, 24, 1)

VGG_SPECS: Mapping[str, VGGSpec] = {
    "nano": VGGSpec(depths=_B, widths=(16, 24, 32, 128), stem=8),
    "a0": VGGSpec(depths=_A, widths=(48, 96, 192, 1280)),
    "a1": VGGSpec(depths=_A, widths=(64, 128, 256, 1280)),
    "a2": VGGSpec(depths=_A, widths=(96, 192, 384, 1408)),
    "b0": VGGSpec(depths=_B, widths=(64, 128, 256, 1280)),
    "b1": VGGSpec(depths=_B, widths=(128, 256, 512, 2048)),
    "b2": VGGSpec(depths=_B, widths=(160, 320, 640, 2560)),
    "b3": VGGSpec(depths=_B, widths=(192, 384, 768, 2560)),
    "l1": VGGSpec(depths=_L, widths=(128, 256, 512, 2048)),
    "l2": VGGSpec(depths=_L, widths=(160, 320, 640, 2560)),
}


class VGGBlock(Foldable):
    """A linear part, a ReLU, and squeeze and excitation where asked for."""

    def __init__(self, channels: int, *, se: bool) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.se = SqueezeExcite(channels, max(1, channels // 4), nn.Sigmoid()) if se else nn.Identity()

    def linear_part(self, x: Tensor) -> Tensor:
        """What in eval mode is one convolution with a bias."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.se(self.relu(self.linear_part(x)))
        return y


class PlainBlock(VGGBlock):
    """3x3 convolution, batch norm, ReLU."""

    norm_pairs = (("conv", "bn"),)

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, dilation: int = 1, *, se: bool = False
    ) -> None:
        super().__init__(out_channels, se=se)
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride, dilation, dilation, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def linear_part(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn(self.conv(x))
        return y


class VGG(StagedNet):
    """A stem, stages of blocks, and a classifier, with the module names of the authors' models.

    Args:
        spec: layers and channels.
        num_classes: outputs; 0 leaves the classifier out.
        in_chans: input channels.
        strides: of the stem and of each stage's first layer (Table 6 has variants).
        output_stride: 8, 16 or 32: strides beyond it become dilation, for dense prediction.
        se: squeeze and excitation after each ReLU, with a quarter of the channels as neurons (Table 3).
        dropout: probability before the classifier.
        global_pool: `avg`, or nothing: then the head gives the last map.
        kernel: how convolutions start: `authors` (torch's default) or `paper` (MSRA).
        deploy: build the deploy form, for weights that are saved in it.
    """

    head_name = "linear"

    def __init__(
        self,
        spec: VGGSpec,
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        strides: Sequence[int] | None = None,
        output_stride: int | None = None,
        se: bool = False,
        dropout: float = 0.0,
        global_pool: Pooling = "avg",
        kernel: Convention = "authors",
        deploy: bool = False,
    ) -> None:
        super().__init__(num_classes=num_classes, in_chans=in_chans, dropout=dropout, global_pool=global_pool)
        self.spec, self.se = spec, se
        self.strides = _checked_strides(strides, 1 + len(spec.depths))
        self.output_stride = output_stride
        taken = dilated(self.strides, output_stride)
        reductions = accumulate((stride for stride, _, _ in taken), operator.mul)
        self.stage0: nn.Module = self.make_block(in_chans, spec.stem_width, *taken[0][:2])
        widths = (spec.stem_width, *spec.widths)
        for index, depth in enumerate(spec.depths, start=1):
            width, (stride, dilation, dilation_after) = widths[index], taken[index]
            first = self.make_block(widths[index - 1], width, stride, dilation)
            rest = [self.make_block(width, width, 1, dilation_after) for _ in range(depth - 1)]
            self.add_module(f"stage{index}", nn.Sequential(first, *rest))
        self.steps = tuple(f"stage{index}" for index in range(len(widths)))
        self.feature_info = [
            {"num_chs": width, "reduction": reduction, "module": f"stage{index}"}
            for index, (width, reduction) in enumerate(zip(widths, reductions, strict=True))
        ]
        self.num_features = self.head_hidden_size = widths[-1]
        draw_convolutions_(self, kernel)
        self.reset_classifier(num_classes)
        if deploy:
            self.switch_to_deploy()

    def make_block(self, in_channels: int, out_channels: int, stride: int, dilation: int) -> VGGBlock:
        raise NotImplementedError


class RepOptVGG(VGG):
    """The plain model, which a RepOptimizer trains as if it were RepVGG."""

    imagined: Mapping[str, list[Branch]] = {r"^stage\d+(\.\d+)?\.conv$": [Conv(3), Conv(1), Identity()]}

    def make_block(self, in_channels: int, out_channels: int, stride: int, dilation: int) -> VGGBlock:
        return PlainBlock(in_channels, out_channels, stride, dilation, se=self.se)


def _checked_strides(strides: Sequence[int] | None, count: int) -> tuple[int, ...]:
    given = (2,) * count if strides is None else strides
    checked = tuple(given) if isinstance(given, Sequence) else (given,)
    if len(checked) != count or any(stride not in (1, 2) for stride in checked):
        raise ValueError(
            f"strides must be {count} numbers that are 1 or 2, for the stem and the first layer of each stage, not "
            f"{checked}"
        )
    return checked
