"""Recipes: everything that decides how a model is trained, as data.

A recipe is a frozen dataclass, and each of the paper's is a function that returns one. `lr` is for `lr_batch` images: a
batch of another size scales it linearly. At each step it follows a linear warm-up, then half a cosine down to 0.
"""

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from repopt.algebra.csla import Convention, IdentityStart
from repopt.data import Augmentation
from repopt.plans.scales import Counting

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Rules = Literal["both", "initialization", "iteration"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "kernel": get_args(Convention),
    "identity": get_args(IdentityStart),
    "rules": get_args(Rules),
}
# what fields must do, the fields that must, and whether a value does
_RANGES: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    (
        "be positive",
        "epochs batch_size lr lr_batch accumulate eval_every eval_batch clip size eval_size",
        lambda value: value > 0,
    ),
    (
        "not be negative",
        "warmup_epochs warmup_lr momentum weight_decay mixup crop_padding workers",
        lambda value: value >= 0,
    ),
    ("lie in [0, 1)", "label_smoothing ema dropout erasing", lambda value: 0 <= value < 1),
    ("lie in (0, 1]", "freeze_at", lambda value: 0 < value <= 1),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained.

    Attributes:
        epochs: passes over the training images.
        batch_size: images per step, over all processes and accumulated parts.
        lr: the highest learning rate, for a batch of `lr_batch`.
        lr_batch: the batch that `lr` is for; another batch size scales it linearly.
        warmup_epochs: epochs of linear warm-up.
        warmup_lr: where the warm-up starts, for a batch of `lr_batch`.
        optimizer: the name of one in torch.optim.
        momentum: of SGD.
        nesterov: Nesterov momentum, of SGD.
        weight_decay: of kernels and identities; norms and biases have none.
        decay_identity: of searches and RepVGG: whether their identities are decayed.
        label_smoothing: share of the target that is spread over all classes.
        clip: the largest norm of the gradient, of the imagined blocks where there are any; none unless given.
        mixup: parameter of the Beta distribution that mixes pairs of images; 0 for none.
        dropout: before the classifier; the model's own unless given.
        ema: decay of a moving average of the weights, which is evaluated beside them; 0 for none.
        accumulate: number of parts that a batch is computed in.
        size: side of the training images; the data's own unless given.
        crop_padding: zeros around an image before a random crop of its own size.
        resized_crop: smallest and largest share of the area that a random resized crop takes; none unless given.
        flip: images left to right, at random.
        randaugment: operations and level of RandAugment; none unless given.
        color_jitter: largest change of brightness, contrast and saturation.
        erasing: probability that a rectangle is erased.
        kernel: how kernels start, the same for every method: `authors` (torch's default) or `paper` (MSRA).
        identity: where the imagined identities start.
        rules: which of the method's two rules are followed; one alone is an ablation and equals no block.
        start: where a search's scales start: sqrt(2/l) counted as the `authors` or the `paper` do, or a number.
        freeze_at: with scales that are learned: the share of the steps after which they are frozen, 0.1 unless given.
        precision: of the forward and backward pass.
        channels_last: memory format of weights and images; on CUDA unless given.
        compile: torch.compile the model; on CUDA unless given.
        tune: let the compiler try kernels on the device, for about a minute more; in a long training unless given.
        graph: replay the whole step as a CUDA graph; where it can be unless given.
        eval_every: epochs between evaluations; the last epoch is always evaluated.
        eval_size: side of the images in evaluation; the training size unless given.
        eval_batch: images per step of evaluation.
        workers: processes that decode images, for sets too large to hold in memory.
        seed: of weights, order and augmentation.
    """

    epochs: int = 120
    batch_size: int = 256
    lr: float = 0.1
    lr_batch: int = 256
    warmup_epochs: float = 5
    warmup_lr: float = 0.0
    optimizer: str = "SGD"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 4e-5
    decay_identity: bool = True
    label_smoothing: float = 0.1
    clip: float | None = None
    mixup: float = 0.0
    dropout: float | None = None
    ema: float = 0.0
    accumulate: int = 1
    size: int | None = None
    crop_padding: int = 0
    resized_crop: tuple[float, float] | None = None
    flip: bool = True
    randaugment: tuple[int, int] | None = None
    color_jitter: float = 0.0
    erasing: float = 0.0
    kernel: Convention = "authors"
    identity: IdentityStart = "searched"
    rules: Rules = "both"
    start: Counting | float = "authors"
    freeze_at: float | None = None
    precision: Precision = "fp32"
    channels_last: bool | None = None
    compile: bool | None = None
    tune: bool | None = None
    graph: bool | None = None
    eval_every: int = 1
    eval_size: int | None = None
    eval_batch: int = 500
    workers: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            self._check_number(each)
        for wanted, names, holds in _RANGES:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not holds(value):
                    raise ValueError(f"the recipe's {name} must {wanted}, not {value}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"a batch of {self.batch_size} cannot be computed in {self.accumulate} equal parts")
        if not isinstance(getattr(torch.optim, self.optimizer, None), type):
            known = {name.lower(): name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
            near = difflib.get_close_matches(self.optimizer.lower(), known) or ["sgd", "adamw"]
            raise ValueError(
                f"torch.optim has no {self.optimizer!r}; it has {', '.join(known[name] for name in near)} and more"
            )
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(
                    f"the recipe's {name} is one of {', '.join(map(repr, words))}, not {getattr(self, name)!r}"
                )

    def _check_number(self, field: "dataclasses.Field[Any]") -> None:
        """Raises unless a field for a number holds one, and a whole one where it counts something."""
        value, kinds = getattr(self, field.name), get_args(field.type) or (field.type,)
        if not {int, float} & set(kinds) or (value is None and type(None) in kinds):
            return
        words = get_args(Counting) if field.name == "start" else ()
        whole = float not in kinds
        if value in words or (not isinstance(value, bool) and isinstance(value, int if whole else int | float)):
            return
        wanted = " or ".join([*map(repr, words), f"a {'whole ' if whole else ''}number"])
        raise ValueError(f"the recipe's {field.name} must be {wanted}, not {value!r}")

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(
            crop_padding=self.crop_padding,
            resized_crop=self.resized_crop,
            flip=self.flip,
            randaugment=self.randaugment,
            color_jitter=self.color_jitter,
            erasing=self.erasing,
        )


def lr_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0; a pure function, so that a checkpoint need not hold it."""
    scale = recipe.batch_size / recipe.lr_batch
    highest, lowest = recipe.lr * scale, recipe.warmup_lr * scale
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    if step < warmup:
        return lowest + (highest - lowest) * (step + 1) / (warmup + 1)
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def freeze_step(recipe: Recipe, steps_per_epoch: int) -> float:
    """The step, counted from 0, before which scales that are learned are frozen; infinity for those of a search."""
    if recipe.freeze_at is None:
        return math.inf
    return max(1, round(recipe.freeze_at * recipe.epochs * steps_per_epoch))


def on_cuda_unless_given(switch: bool | None, device: torch.device) -> bool:
    """A recipe's switch as given, or else on for CUDA."""
    return device.type == "cuda" if switch is None else switch


def imagenet() -> Recipe:
    """The paper's training on ImageNet (section 4.1)."""
    return Recipe(size=224, resized_crop=(0.08, 1.0), randaugment=(2, 15))


def small() -> Recipe:
    """The paper's training for small images that are held on the device: flip and crop instead of RandAugment."""
    return Recipe(crop_padding=4)


def search() -> Recipe:
    """Hyper-Search on CIFAR-100 as the authors' released code does it (variant b)."""
    return Recipe(epochs=240, label_smoothing=0.0, crop_padding=4, eval_every=20)


def search_clipped() -> Recipe:
    """Hyper-Search as the authors' other configuration has it (variant a): smoothing, long warm-up, clipping."""
    return dataclasses.replace(search(), label_smoothing=0.1, warmup_epochs=10, clip=5.0)


def search_paper() -> Recipe:
    """Hyper-Search as the paper describes it: label smoothing, no clipping, its own counting of the depth."""
    return dataclasses.replace(search(), label_smoothing=0.1, start="paper", kernel="paper")


def ghost() -> Recipe:
    """GhostNet on ImageNet (appendix D)."""
    return Recipe(
        epochs=300,
        batch_size=1024,
        lr=0.6,
        warmup_lr=1e-4,
        weight_decay=1e-5,
        dropout=0.2,
        size=224,
        resized_crop=(0.08, 1.0),
        color_jitter=0.4,
        erasing=0.2,
    )


def ghost_search() -> Recipe:
    """Hyper-Search for GhostNet on CIFAR-100."""
    return dataclasses.replace(
        ghost(), epochs=600, warmup_epochs=10, clip=5.0, size=None, resized_crop=None, crop_padding=4, eval_every=20
    )


def finetune() -> Recipe:
    """A short training from given weights: a tenth of the learning rate, no warm-up."""
    return Recipe(epochs=20, lr=0.01, warmup_epochs=0, crop_padding=4)


def demo() -> Recipe:
    """Minutes on a CPU: nano on digits."""
    return Recipe(epochs=15, batch_size=64, lr_batch=64, label_smoothing=0.0, flip=False, eval_every=5)


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "imagenet": imagenet,
    "small": small,
    "search": search,
    "search-clipped": search_clipped,
    "search-paper": search_paper,
    "ghost": ghost,
    "ghost-search": ghost_search,
    "finetune": finetune,
    "demo": demo,
}


def load_recipe(name_or_path: str | Path, default: Recipe | None = None) -> Recipe:
    """A recipe by its name, or from a TOML or JSON file whose fields replace those of `base` (a name) in it."""
    name = str(name_or_path)
    if name in RECIPES:
        return RECIPES[name]()
    path = Path(name)
    if path.suffix not in {".toml", ".json"}:
        near = difflib.get_close_matches(name, RECIPES) or list(RECIPES)
        raise ValueError(f"there is no recipe {name!r}; there is {', '.join(near)}, or a .toml file of your own")
    if not path.is_file():
        raise FileNotFoundError(f"there is no recipe file {name!r}")
    try:
        fields = json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"the recipe file {name!r} cannot be read: {error}") from error
    base = load_recipe(fields.pop("base")) if "base" in fields else default or Recipe()
    return with_fields(base, fields, name)


def with_fields(recipe: Recipe, fields: Mapping[str, Any], source: str) -> Recipe:
    """The recipe with other values for some fields, checked by name."""
    known = [field.name for field in dataclasses.fields(Recipe)]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known) or known
            raise ValueError(f"{source!r} has the field {name!r}, which no recipe has; there is {', '.join(near)}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return dataclasses.replace(recipe, **values)
