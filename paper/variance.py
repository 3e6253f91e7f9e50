"""The identity variance ratio at initialization, by depth: the figure of appendix B.

    ratio  =  var(identity path) / var(sum)

In a ResNet every residual has variance 1, as it comes out of a batch norm, and the identity path gathers one more with
every addition: the n-th ratio is about n / (n + 1). In a search model no norm comes before the addition: with all
scales 1 the ratio stays where it is, and scales of sqrt(2/l) make it grow as a ResNet's does.

The variance of a map is each channel's own, over images and positions, averaged over channels.
"""

import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from repopt.models import RepOptVGG, VGGSpec
from repopt.plans.planning import plan
from repopt.plans.scales import Counting
from repopt.surgery.blocks import SearchBlock
from repopt.surgery.conversion import search_blocks, search_model

RESNET = "ResNet"
# where the scales of the search models start
STARTS: Mapping[str, Counting | float] = {"search, all 1": 1.0, "search, sqrt(2/l)": "authors"}
Ratios = Mapping[str, Mapping[int, float]]  # by model, and by block of the longest stage; the first has no identity


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, which is a 1x1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        conv = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        again = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        norms = nn.BatchNorm2d(out_channels), nn.BatchNorm2d(out_channels)
        self.residual = nn.Sequential(conv, norms[0], nn.ReLU(), again, norms[1])
        self.shortcut = nn.Sequential()
        if in_channels != out_channels or stride > 1:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.residual(x))


class ResNet(nn.Sequential):
    """A ResNet of basic blocks with the stages of a RepOpt-VGG: all have stride 2 at their start."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int], *, stem: int, in_chans: int = 3) -> None:
        super().__init__()
        self.stage0 = nn.Sequential(nn.Conv2d(in_chans, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU())
        before = (stem, *widths)
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            rest = [ResidualBlock(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"stage{number + 1}", nn.Sequential(ResidualBlock(before[number], width, 2), *rest))


def identity_ratios(spec: VGGSpec, images: Tensor, seed: int) -> Ratios:
    """The ratios of a ResNet and of both search models, as drawn from a seed, on a batch of images."""
    stage = f"stage{spec.depths.index(max(spec.depths)) + 1}"
    found: dict[str, Mapping[int, float]] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        resnet = ResNet(spec.depths, spec.widths, stem=spec.stem_width, in_chans=images.shape[1])
        blocks = {place: block for place, block in enumerate(resnet.get_submodule(stage).children(), start=1)}
        residuals = {place: block.get_submodule("residual") for place, block in blocks.items() if place > 1}
        found[RESNET] = _measured(resnet, residuals, images)
        net = RepOptVGG(spec, num_classes=0, in_chans=images.shape[1])
        for name, start in STARTS.items():
            searching = search_model(net, plan(net), start=start, generator=torch.Generator().manual_seed(seed))
            inside = [block for name, block in search_blocks(searching).items() if name.startswith(f"{stage}.")]
            sums = {place: block for place, block in enumerate(inside, start=1) if "identity" in block.kernels}
            found[name] = _measured(searching, sums, images)
    return found


def over_seeds(drawn: Sequence[Ratios]) -> dict[str, dict[int, tuple[float, float]]]:
    """{model: {block: mean and sample deviation over the seeds}}; the deviation of one seed is 0."""
    return {
        model: {block: _mean_and_deviation([each[model][block] for each in drawn]) for block in by_block}
        for model, by_block in drawn[0].items()
    }


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


@torch.no_grad()
def _measured(net: nn.Module, blocks: Mapping[int, nn.Module], images: Tensor) -> dict[int, float]:
    """The ratio at each search block, or residual path, beside an identity, from one pass in training mode."""
    found = {}

    def measure(place: int, module: nn.Module, x: Tensor, output: Tensor) -> None:
        in_search = isinstance(module, SearchBlock)
        identity = x * module.kernels["identity"].reshape(-1, 1, 1) if isinstance(module, SearchBlock) else x
        found[place] = (_variance(identity) / _variance(output if in_search else x + output)).item()

    hooks = [
        block.register_forward_hook(lambda block, inputs, output, place=place: measure(place, block, inputs[0], output))
        for place, block in blocks.items()
    ]
    net.train()(images)
    for hook in hooks:
        hook.remove()
    return found


def _variance(x: Tensor) -> Tensor:
    return x.double().movedim(1, 0).flatten(1).var(1).mean()
