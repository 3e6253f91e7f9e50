"""Scales: the constants s_b of the imagined blocks, {operator: {branch: tensor}}.

A scale is a scalar, or one number per output channel. Files are safetensors whose keys are `operator.branch` and whose
metadata says where the scales come from; the .pth files that the paper's authors released are read as well. The
identity's constant is 1 whatever a file says: an `identity` entry is what Hyper-Search found, kept for the
initialization.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from repopt.files import read_sealed, read_torch, write_sealed
from repopt.plans.choices import check_choice, instead_of
from repopt.plans.declarations import names_in_parts
from repopt.plans.patterns import clean
from repopt.plans.wording import counted

if TYPE_CHECKING:
    from repopt.plans.planning import Plan

Counting = Literal["authors", "paper"]

_LARGEST = int(torch.finfo(torch.float64).max)

ZOO = Path(__file__).parents[1] / "zoo"

_BRANCH_NAME = re.compile(r"(conv\d+(x\d+)*(d\d+(x\d+)*)?(g\d+)?|linear|identity)(_\d+)?")

# key in an authors' file -> operator, branch
_AUTHORS_KEYS = (
    (re.compile(r"(.+)\.scale_conv\.weight"), r"\1.conv", "conv3x3"),
    (re.compile(r"(.+)\.scale_1x1\.weight"), r"\1.conv", "conv1x1"),
    (re.compile(r"(.+)\.scale_identity\.weight"), r"\1.conv", "identity"),
    (re.compile(r"(.+\.cheap_operation)\.1\.weight"), r"\1.0", "conv3x3"),
    (re.compile(r"(.+)\.fusion_scale\.weight"), r"\1.cheap_operation.0", "identity"),
)


class Scales(Mapping[str, Mapping[str, Tensor]]):
    """The constants of a model's imagined blocks, by operator and branch.

    Args:
        values: {operator: {branch: number or tensor}}.
        metadata: where the scales come from; saved with them.

    Example:
        >>> scales = Scales({"conv": {"conv3x3": 0.5, "conv1x1": 1.0}})
        >>> scales["conv"]["conv3x3"].item()
        0.5
    """

    def __init__(
        self, values: Mapping[str, Mapping[str, Tensor | float]], metadata: Mapping[str, str] | None = None
    ) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(operator, str) for operator in values):
            raise TypeError(f"scales are a dictionary {{operator: {{branch: number or tensor}}}}, not {values!r}")
        if not isinstance(metadata, Mapping | None) or not all(
            isinstance(text, str) for text in (metadata or {}).values()
        ):
            raise TypeError(f"metadata is a dictionary of texts, not {metadata!r}")
        self._values: dict[str, dict[str, Tensor]] = {}
        for operator, branches in values.items():
            if not isinstance(branches, Mapping):
                raise TypeError(f"the scales of {operator!r} must be a dictionary by branch, not {branches!r}")
            self._values[operator] = {
                branch: _scale(value, f"{operator}.{branch}") for branch, value in branches.items()
            }
        self.metadata = dict(metadata or {})

    def __getitem__(self, operator: str) -> Mapping[str, Tensor]:
        return self._values[operator]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        """The same numbers for the same branches; where they come from does not count."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(_are_alike(self[operator], other[operator]) for operator in self)

    __hash__ = None  # type: ignore[assignment]  # as of any mapping

    def __repr__(self) -> str:
        entries = sum(scale.numel() for branches in self._values.values() for scale in branches.values())
        return f"Scales({counted(len(self), 'operator')}, {counted(entries, 'number')})"

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Scales":
        """Reads scales that ship with repopt, a .safetensors file, or the authors' .pth file."""
        path = _find(name_or_path)
        return _read_authors(path) if path.suffix in {".pth", ".pt"} else _read_safetensors(path)

    def save(self, path: str | Path) -> None:
        """Writes a .safetensors file, whole or not at all."""
        if not isinstance(path, str | Path):
            raise TypeError(f"scales are saved to a file, not to a {type(path).__name__}")
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"scales are saved as safetensors, so {str(path)!r} must end in .safetensors")
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(Path(path).parent)!r} to save scales in: make it first")
        tensors = {
            f"{operator}.{branch}": scale.contiguous()
            for operator, branches in self._values.items()
            for branch, scale in branches.items()
        }
        write_sealed(Path(path), tensors, self.metadata)

    @classmethod
    def ones(cls, plan: "Plan") -> "Scales":
        """Every scale 1: the ablation `All 1` of the paper's Table 4."""
        return cls.constant(plan, 1.0)

    @classmethod
    def constant(cls, plan: "Plan", value: float) -> "Scales":
        """One number for every scale."""
        if not isinstance(value, int | float):
            raise TypeError(f"a constant scale is a number, not {value!r}")
        _check_has_blocks(plan)
        return cls._by_operator(plan, dict.fromkeys(plan.operators, float(value)))

    @classmethod
    def depth_init(cls, plan: "Plan", counting: Counting = "authors") -> "Scales":
        """Every scale sqrt(2/l), as a Hyper-Search starts: the ablation `Same as HS initialization` of Table 4.

        Args:
            plan: the plan; its `depths()` say how deep in its stage each operator lies.
            counting: `authors` (and appendix B) gives the first operator of a stage 1 and lets l count those behind
                it; `paper` (section 4.1) starts with l = 1 at the first operator itself.
        """
        check_choice("counting", counting, get_args(Counting))
        _check_has_blocks(plan)
        values = {}
        for operator, depth in plan.depths().items():
            layer = depth if counting == "authors" else depth + 1
            values[operator] = math.sqrt(2 / layer) if layer else 1.0
        return cls._by_operator(plan, values)

    def only(self, plan: "Plan") -> "Scales":
        """The scales of the operators that a plan holds, such as those of a whole model for its backbone."""
        _check_has_blocks(plan)
        named = self.named_by(plan)
        return Scales({name: branches for name, branches in named.items() if name in plan.blocks}, self.metadata)

    def named_by(self, plan: "Plan") -> "Scales":
        """The same with a plan's names: without those of wrappers, and with that of its model's backbone."""
        names = names_in_parts(plan.model, plan.blocks)
        return Scales({new: self[name] for name in self for new in names.get(clean(name), [name])}, self.metadata)

    def channel_mean(self) -> "Scales":
        """Each scale replaced by its mean over the channels: `Average across channels` of Table 4."""
        return Scales(
            {
                operator: {branch: scale.mean().expand_as(scale).clone() for branch, scale in branches.items()}
                for operator, branches in self._values.items()
            },
            metadata={**self.metadata, "channels": "mean"},
        )

    @classmethod
    def _by_operator(cls, plan: "Plan", values: Mapping[str, float]) -> "Scales":
        return cls(
            {
                operator: {
                    branch: torch.full((block.operator.out_channels,), values[operator], device="cpu")
                    for branch, placement in block.branches.items()
                    if not placement.is_identity
                }
                for operator, block in plan.blocks.items()
            }
        )


def shipped() -> list[str]:
    """The names of the scales inside the package."""
    return sorted(path.stem for path in ZOO.glob("*.safetensors"))


def _are_alike(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(scale, others[branch]) for branch, scale in some.items())


def _check_has_blocks(plan: object) -> None:
    """Raises unless this is a plan, whose module imports this one."""
    if not isinstance(getattr(plan, "blocks", None), Mapping):
        raise TypeError(f"plan is what repopt.plan(model, ...) returns, not a {type(plan).__name__}")


def _scale(value: Tensor | float, key: str) -> Tensor:
    if not isinstance(value, Tensor | int | float):
        raise TypeError(f"the scale {key!r} is a {type(value).__name__}: it must be a number or a tensor")
    if isinstance(value, Tensor) and (value.is_meta or value.layout != torch.strided):
        raise ValueError(f"the scale {key!r} is sparse or on the meta device: it must be a dense tensor with values")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"the scale {key!r} is too large for a floating-point number")
    # a copy: what happens to the user's tensor later must not change the optimizer's constants
    scale = (
        value.detach().cpu().clone()
        if isinstance(value, Tensor)
        else torch.tensor(value, dtype=torch.float64, device="cpu")
    )
    if scale.ndim > 1 or not scale.is_floating_point():
        raise ValueError(
            f"the scale {key!r} is {scale.dtype} of shape {tuple(scale.shape)}: it must be a real number or one per "
            "output channel"
        )
    if not scale.isfinite().all():
        bad = int((~scale.isfinite()).sum())
        raise ValueError(f"the scale {key!r} holds {bad} NaN or infinite value(s): it must be finite")
    return scale


def _find(name_or_path: str | Path) -> Path:
    if not isinstance(name_or_path, str | Path):
        raise TypeError(f"Scales.load takes a name or a file, not a {type(name_or_path).__name__}")
    path = Path(name_or_path)
    if path.suffix in {".safetensors", ".pth", ".pt"}:
        if not path.is_file():
            raise FileNotFoundError(f"there is no scales file {str(path)!r}")
        return path
    names = shipped()
    if str(name_or_path) in names:
        return ZOO / f"{name_or_path}.safetensors"
    if (path / "scales.safetensors").is_file():
        raise FileNotFoundError(f"{str(path)!r} is a folder: give the file in it, {str(path / 'scales.safetensors')!r}")
    raise FileNotFoundError(
        f"{str(name_or_path)!r} is neither 'ones', 'depth', a .safetensors file, the authors' .pth, nor the name of "
        f"scales that ship with repopt: {instead_of(name_or_path, names)}"
    )


def _read_safetensors(path: Path) -> Scales:
    tensors, metadata = read_sealed(path, unsealed_too=True)
    values: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        operator, _, branch = key.rpartition(".")
        if not _BRANCH_NAME.fullmatch(branch):
            raise ValueError(
                f"{str(path)!r} holds {key!r}, which does not end in a branch's name (conv3x3, identity, ...): it is "
                "no file of scales"
            )
        values.setdefault(operator, {})[branch] = tensor
    return Scales(values, metadata)


def _read_authors(path: Path) -> Scales:
    tensors = read_torch(path)
    if not isinstance(tensors, dict) or not tensors:
        raise ValueError(f"{str(path)!r} does not hold a dictionary of scales, as the authors' files do")
    values: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        operator, branch = _authors_key(clean(str(key)), path)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{str(path)!r} holds no tensor at {key!r}, as the authors' files do")
        values.setdefault(operator, {})[branch] = tensor
    return Scales(values, {"source": f"the authors' {path.name}"})


def _authors_key(key: str, path: Path) -> tuple[str, str]:
    for pattern, operator, branch in _AUTHORS_KEYS:
        if match := pattern.fullmatch(key):
            return match.expand(operator), branch
    raise ValueError(
        f"{str(path)!r} holds {key!r}, which is not a scale in the authors' RepOpt-VGG or RepOpt-GhostNet files"
    )
