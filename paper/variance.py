"""The identity variance ratio at initialization, by depth: the figure of appendix B.

    ratio  =  var(identity path) / var(sum)

In a ResNet every residual has variance 1, as it comes out of a batch norm, and the identity path gathers one more with
every addition: the n-th ratio is about n / (n + 1). In a search model no norm comes before the addition: with all
scales 1 the ratio stays where it is, and scales of sqrt(2/l) make it grow as a ResNet's does.

The variance of a map is each channel's own, over images and positions, averaged over channels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))
        self.addition = Addition()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.addition(self.shortcut(x), self.residual(x)))
        return y


class ResNet(nn.Sequential):
    """A ResNet of basic blocks with the stages of a RepOpt-VGG: all have stride 2 at their start."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int], *, stem: int, in_chans: int = 3) -> None:
        super().__init__()
        self.stage0 = nn.Sequential(nn.Conv2d(in_chans, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU())
        before = (stem, *widths)
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            rest = [ResidualBlock(width, width, 1) for _ in range(depth - 1)]
            self.add_module(f"stage{number + 1}", nn.Sequential(ResidualBlock(before[number], width, 2), *rest))


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """The ratios in one model, {block of the longest stage, from 1 on: ratio}; the first block has no identity path."""

    model: str
    seed: int
    by_block: Mapping[int, float]


def identity_ratios(spec: VGGSpec, images: Tensor, seed: int) -> list[Ratios]:
    """The ratios of a ResNet and of both search models, as drawn from a seed, on a batch of images."""
    stage = f"stage{spec.depths.index(max(spec.depths)) + 1}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        resnet = ResNet(spec.depths, spec.widths, stem=spec.stem_width, in_chans=images.shape[1])
        found = {RESNET: _of_resnet(resnet, stage, images)}
        net = RepOptVGG(spec, num_classes=0, in_chans=images.shape[1])
        for name, start in STARTS.items():
            generator = torch.Generator().manual_seed(seed)
            found[name] = _of_search(search_model(net, plan(net), start=start, generator=generator), stage, images)
    return [Ratios(model=name, seed=seed, by_block=by_block) for name, by_block in found.items()]


def over_seeds(ratios: Sequence[Ratios]) -> dict[str, dict[int, tuple[float, float]]]:
    """{model: {block: mean and sample deviation over the seeds}}; the deviation of one seed is 0."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for model in dict.fromkeys(each.model for each in ratios):
        drawn = [each.by_block for each in ratios if each.model == model]
        found[model] = {block: _mean_and_deviation([one[block] for one in drawn]) for block in drawn[0]}
    return found


def _of_resnet(net: ResNet, stage: str, images: Tensor) -> dict[int, float]:
    blocks = dict(enumerate(net.get_submodule(stage).children(), start=1))
    additions = {
        place: block.addition
        for place, block in blocks.items()
        if isinstance(block, ResidualBlock) and block.keeps_shape
    }
    return _measured(net, additions, images)


def _of_search(net: nn.Module, stage: str, images: Tensor) -> dict[int, float]:
    names = [name for name in search_blocks(net) if name.startswith(f"{stage}.")]
    blocks = {place: search_blocks(net)[name] for place, name in enumerate(names, start=1)}
    return _measured(net, {place: block for place, block in blocks.items() if "identity" in block.kernels}, images)


@torch.no_grad()
def _measured(net: nn.Module, sums: Mapping[int, nn.Module], images: Tensor) -> dict[int, float]:
    """The ratio at each module whose output is a sum with an identity, from one pass in training mode."""
    found = {}

    def measure(place: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        identity = inputs[0]
        if isinstance(module, SearchBlock):
            identity = identity * module.kernels["identity"].reshape(-1, 1, 1)
        found[place] = (_variance(identity) / _variance(output)).item()

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, place=place: measure(place, module, inputs, output))
        for place, module in sums.items()
    ]
    net.train()(images)
    for hook in hooks:
        hook.remove()
    return found


def _variance(x: Tensor) -> Tensor:
    return x.double().movedim(1, 0).flatten(1).var(1).mean()


def _mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    numbers = torch.tensor(list(values), dtype=torch.float64)
    return numbers.mean().item(), numbers.std().item() if len(numbers) > 1 else 0.0
