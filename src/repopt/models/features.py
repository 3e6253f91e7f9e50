"""A model as a backbone: the last map of each stage instead of the classes' scores.

The modules keep their names: a checkpoint of the whole model loads into the backbone, and of its scales `Scales.only`
keeps what fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from repopt.algebra.branches import Branch
from repopt.models.folding import Foldable
from repopt.models.staged import StagedNet, check_images, declared

Which = int | Sequence[int] | None  # stages; those whose maps are returned unless given


@dataclass(frozen=True)
class FeatureInfo:
    """What a backbone's maps are; the methods are those of timm's class of this name.

    Attributes:
        info: a dictionary a stage: num_chs, reduction, module, index.
        out_indices: the stages whose maps the backbone returns.
    """

    info: Sequence[dict[str, Any]]
    out_indices: tuple[int, ...]

    def channels(self, idx: Which = None) -> Any:
        return self.get("num_chs", idx)

    def reduction(self, idx: Which = None) -> Any:
        return self.get("reduction", idx)

    def module_name(self, idx: Which = None) -> Any:
        return self.get("module", idx)

    def get(self, key: str, idx: Which = None) -> Any:
        """What stands there for each map returned, or for the stages of these numbers; for one number, it alone."""
        found = self.get_dicts([key], idx)
        return found[key] if isinstance(found, dict) else [info[key] for info in found]

    def get_dicts(self, keys: Sequence[str] | None = None, idx: Which = None) -> Any:
        """The dictionaries, or these keys of them."""
        if isinstance(idx, int):
            return self.info[idx] if keys is None else {key: self.info[idx][key] for key in keys}
        return [self.get_dicts(keys, index) for index in (self.out_indices if idx is None else idx)]

    def from_other(self, out_indices: Sequence[int] | int) -> "FeatureInfo":
        """The same stages, of which others are returned."""
        return replace(self, out_indices=_chosen(out_indices, len(self)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.info[index]

    def __len__(self) -> int:
        return len(self.info)


class FeatureMaps(Foldable):
    """A backbone: returns a list of maps, finest first.

    Args:
        net: the model; its modules are shared, not copied, and those behind the last map wanted are left out.
        out_indices: which stages, all unless given; negative ones count from the end, and one number is, as in timm,
            how many of the last ones.

    Attributes:
        feature_info: channels and reductions of the maps.
        left_out: names of the modules that the whole model has and the backbone has not.
        return_layers: names of the steps whose maps are returned; transformers sets it to get all of them.
    """

    def __init__(self, net: StagedNet, out_indices: Sequence[int] | int | None = None) -> None:
        super().__init__()
        if not isinstance(net, StagedNet):
            raise TypeError(f"FeatureMaps takes a model of repopt.create_model, not a {type(net).__name__}")
        self.training = net.training
        stages = [{**stage, "index": index} for index, stage in enumerate(net.feature_info)]
        self.feature_info = FeatureInfo(stages, _chosen(out_indices, len(stages)))
        self.in_chans = net.in_chans
        self.norm_pairs = net.norm_pairs
        wanted = self.feature_info.module_name()
        self.steps = net.steps[: net.steps.index(wanted[-1]) + 1]
        for name, child in net.named_children():
            parts = [step for step in self.steps if step.startswith(f"{name}.")]
            if name in self.steps:
                self.add_module(name, child)
            elif parts:
                assert isinstance(child, nn.Sequential)
                self.add_module(name, child[: len(parts)])
                self.get_submodule(name).training = child.training
        kept = {name for name, _ in self.named_modules()}
        self.left_out = tuple(name for name, _ in net.named_modules() if name not in kept)
        self.return_layers = {stage["module"]: str(stage["index"]) for stage in self.feature_info.get_dicts()}
        self._depths = net.repopt_depths()
        self._imagined = net.imagined

    def forward(self, x: Tensor) -> list[Tensor]:
        check_images(x, self.in_chans, self)
        maps = []
        for name in self.steps:
            x = self.get_submodule(name)(x)
            if name in self.return_layers:
                maps.append(x)
        return maps

    def repopt_branches(self) -> dict[str, list[Branch]]:
        return declared(self._imagined)

    def repopt_depths(self) -> dict[str, int] | None:
        return self._depths


def _chosen(out_indices: Sequence[int] | int | None, count: int) -> tuple[int, ...]:
    """The stages wanted, counted from the first, in order."""
    wanted = range(count) if out_indices is None else out_indices
    if isinstance(wanted, int):
        wanted = range(count - wanted, count) if 0 < wanted <= count else ()
    indices = list(wanted) if isinstance(wanted, Iterable) else []
    if not indices or not all(isinstance(index, int) and -count <= index < count for index in indices):
        raise ValueError(
            f"out_indices must be whole numbers from 0 to {count - 1}, or one from 1 to {count} for that many of the "
            f"last stages, not {out_indices!r}"
        )
    return tuple(sorted({index % count for index in indices}))
