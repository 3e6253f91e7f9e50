"""The spread of a layer's 3x3 kernel: Table 8 and the table of appendix C.

    RepVGG      W_3x3   ->   t_3x3 * W_3x3   ->   t_3x3 * W_3x3 + centre(t_1x1 * W_1x1 + t_id)
                before fusing BN    after fusing BN     after branch addition: what is deployed
    RepOpt      W       ->   t * W                      the paper's number is of W; t * W is what is deployed

Branch addition changes the central position alone, so the standard deviation is also given there and around it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from repopt.models import create_model, deploy, load_checkpoint
from repopt.models.ghost import GhostModule
from repopt.models.repvgg import RepVGGBlock
from repopt.models.saved import read_saved
from repopt.models.staged import StagedNet
from repopt.models.vgg import PlainBlock
from repopt.plans.wording import listed
from repopt.surgery.norms import norm_affine
from repopt.train.best_weights import finished_model
from repopt.train.methods import Method, make_subject
from repopt.train.records import read_info, read_json
from repopt.train.resuming import starting_scales
from repopt.train.runs import load_run, run_recipe

POSITIONS = ("overall", "central", "surrounding")

_LAYERS = (PlainBlock, RepVGGBlock, GhostModule)
_SAMPLED = 8  # "the 8th 3x3 layer in the 16-layer stage"
_PLAIN, _BEFORE, _AFTER, _ADDED = "3x3 kernel", "before fusing BN", "after fusing BN", "after branch addition"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A 3x3 layer of a model, by the name of the block that holds it, and its place in its stage from 1 on."""

    name: str
    stage: str
    place: int
    of: int

    def __str__(self) -> str:
        return f"{self.name}, layer {self.place} of {self.of} in {self.stage}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunKernels:
    """One layer's kernel on its way from training to deployment: {step: (trained, at initialization)}."""

    about: Mapping[str, str]  # the run's name, method and model
    seed: int
    layer: Layer
    kernels: Mapping[str, tuple[Tensor, Tensor]]


def run_kernels(folder: str | Path, layer: str | None = None, *, name: str | None = None) -> RunKernels:
    """Reads a layer's kernels from a finished run, and draws them as they were at its start."""
    folder = Path(folder)
    trained = load_run(folder)
    about = read_json(folder, "run.json")
    found = find_layer(trained.model, layer)
    after, before = (layer_kernels(model, found) for model in (trained.model, starting_model(folder)))
    if not all(kernel.isfinite().all() for kernel in after.values()):
        raise ValueError(f"{found.name} of {str(folder)!r} holds numbers that are not finite: the run has diverged")
    names = {"run": name or folder.resolve().name, "method": about["method"], "model": trained.config["model"]}
    kernels = {step: (after[step], before[step]) for step in after}
    return RunKernels(about=names, seed=about["seed"], layer=found, kernels=kernels)


def spreads(trained: Tensor, start: Tensor) -> dict[str, float]:
    """As columns: trained, and at initialization."""
    return {**spread(trained), **{f"{position}_at_init": value for position, value in spread(start).items()}}


def starting_model(folder: str | Path) -> nn.Module:
    """The model of a finished run before its first step, drawn again from its seed; its branches are merged."""
    folder = Path(folder)
    saved, run, recipe = read_saved(folder), read_info(folder), run_recipe(folder)
    with torch.random.fork_rng(devices=[]):  # the caller's own draws stay what they were
        torch.manual_seed(recipe.seed)
        model = create_model(saved.model, kernel=recipe.kernel, **saved.options)
        if run.weights is not None:
            load_checkpoint(model, Path(run.weights))
        subject = make_subject(
            cast(Method, run.method),
            model,
            recipe,
            scales=starting_scales(folder, run, recipe),
            drawn=run.weights is None,
            branches=run.branches,
        )
    return finished_model(subject.model).eval()


def find_layer(model: nn.Module, name: str | None = None) -> Layer:
    """A 3x3 layer by the name of its block, or of a module in it.

    Without a name it is the 8th of the longest stage, as in the paper, or the middle one where there are fewer.
    """
    layers = _layers(model)
    if not layers:
        raise ValueError(f"this {type(model).__name__} holds no 3x3 layer that can be analyzed: give a model of repopt")
    if name is not None:
        found = [layer for layer in layers if name == layer.name or name.startswith(f"{layer.name}.")]
        if not found:
            raise ValueError(f"the model has no 3x3 layer {name!r}: it has {listed([each.name for each in layers])}")
        return found[0]
    longest = max(layers, key=lambda layer: layer.of)
    place = _SAMPLED if longest.of >= _SAMPLED else (longest.of + 1) // 2
    return next(layer for layer in layers if layer.stage == longest.stage and layer.place == place)


def layer_kernels(model: nn.Module, layer: Layer) -> dict[str, Tensor]:
    """A layer's 3x3 kernel on its way to deployment, the last one being what is deployed."""
    block = model.get_submodule(layer.name)
    if isinstance(block, RepVGGBlock):
        kernels = block.kernels()
        return {_BEFORE: kernels.trained["conv3x3"], _AFTER: kernels.fused["conv3x3"], _ADDED: kernels.added}
    if isinstance(block, PlainBlock):
        return _fused(_PLAIN, block.conv, block.bn)
    assert isinstance(block, GhostModule)
    conv, norm = block.cheap_operation
    if not len(block.fusion_bn):
        return _fused(_PLAIN, conv, norm)
    deployed = deploy(block).cheap_operation.get_submodule("0")
    assert isinstance(deployed, nn.Conv2d)
    return {**_fused(_BEFORE, conv, norm), _ADDED: deployed.weight.detach()}


def at_positions(kernel: Tensor) -> dict[str, Tensor]:
    """A kernel's numbers by position: all, those at the centre, those around it."""
    height, width = kernel.shape[-2:]
    if height != width or height < 3 or not height % 2:
        raise ValueError(f"only a square kernel of odd size has a centre and surroundings, not one of {height}x{width}")
    taps = kernel.flatten(-2).movedim(-1, 0).flatten(1)
    centre = len(taps) // 2
    around = [tap for tap in range(len(taps)) if tap != centre]
    return {"overall": taps.flatten(), "central": taps[centre], "surrounding": taps[around].flatten()}


def spread(kernel: Tensor) -> dict[str, float]:
    """The standard deviation of a kernel, overall, at the centre and around it."""
    return {name: values.double().std().item() for name, values in at_positions(kernel).items()}


def _layers(model: nn.Module) -> list[Layer]:
    """All 3x3 layers, by depth."""
    found = []
    for stage in model.steps if isinstance(model, StagedNet) else ():
        inside = model.get_submodule(stage).named_modules(prefix=stage)
        names = [name for name, module in inside if isinstance(module, _LAYERS)]
        found += [Layer(name=name, stage=stage, place=place, of=len(names)) for place, name in enumerate(names, 1)]
    return found


def _fused(name: str, conv: nn.Module, norm: nn.Module) -> dict[str, Tensor]:
    """A convolution's kernel before and after its norm is fused into it."""
    assert isinstance(conv, nn.Conv2d)
    kernel = conv.weight.detach()
    scale, _ = norm_affine(norm, like=kernel[:, 0, 0, 0])
    return {name: kernel, _AFTER: kernel * scale.detach().reshape(-1, 1, 1, 1)}
