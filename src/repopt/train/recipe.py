"""Recipes: everything that decides how a model is trained, as data.

A recipe is a frozen dataclass, and each of the paper's is a function that returns one. `lr` is for `lr_batch` images: a
batch of another size scales it linearly. At each step it follows a linear warm-up, then half a cosine down to 0.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import torch

from repopt.algebra.csla import Convention, IdentityStart
from repopt.data import Augmentation
from repopt.data.augment import Paint, RandAugments
from repopt.files import read_as, read_toml
from repopt.models.saved import tuples
from repopt.plans.choices import instead_of
from repopt.plans.scales import Counting
from repopt.plans.wording import counted
from repopt.train.named_optimizer import optimizer_named

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Rules = Literal["both", "initialization", "iteration"]

_MANY, _LARGE = 2**31 - 1, 1e38  # no product of counts is beyond a float, and no number beyond a float32


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a number of a recipe may be: always finite, from `low` to `high`.

    Attributes:
        low: the least.
        high: the most.
        above: whether it must be more than `low`.
        below: whether it must be less than `high`.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        over = value > self.low if self.above else value >= self.low
        return over and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low, high = (f"{edge:g}" if isinstance(edge, float) else str(edge) for edge in (self.low, self.high))
        return (
            f"{'more than' if self.above else 'at least'} {low} and {'less than' if self.below else 'at most'} {high}"
        )


_COUNT, _SIDE, _SHARE = Bound(low=1, high=_MANY), Bound(low=1, high=8192), Bound(low=0, high=1, below=True)
_POSITIVE, _NOT_NEGATIVE = Bound(low=0, high=_LARGE, above=True), Bound(low=0, high=_LARGE)
BOUNDS: Mapping[str, Bound] = {
    **dict.fromkeys(("epochs", "batch_size", "lr_batch", "accumulate", "eval_every", "eval_batch"), _COUNT),
    **dict.fromkeys(("size", "eval_size"), _SIDE),
    **dict.fromkeys(("lr", "scale_lr", "clip"), _POSITIVE),
    **dict.fromkeys(("warmup_epochs", "warmup_lr", "weight_decay", "mixup"), _NOT_NEGATIVE),
    **dict.fromkeys(("momentum", "label_smoothing", "ema", "dropout", "erasing"), _SHARE),
    "color_jitter": Bound(low=0, high=1),
    **dict.fromkeys(("eval_share", "freeze_at"), Bound(low=0, high=1, above=True)),
    "crop_padding": Bound(low=0, high=8192),
    "workers": Bound(low=0, high=4096),
    "start": Bound(low=-_LARGE, high=_LARGE),
    "seed": Bound(low=-(2**63), high=2**63 - 1),
}
# what a user calls a type; `tuple[float, float]` and words are spelt out by `_wanted`
_KINDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


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
        optimizer: the name of one in torch.optim, or Lion.
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
        randaugment_by: whose RandAugment, the paper's authors' (levels of 10) or torchvision's (levels of 30, weaker).
        color_jitter: largest change of brightness, contrast and saturation.
        erasing: probability that a rectangle is erased.
        erasing_with: what a rectangle is filled with: noise, as the authors', or the image's mean colour.
        kernel: how kernels start, the same for every method: `authors` (torch's default) or `paper` (MSRA).
        identity: where the imagined identities start.
        rules: which of the method's two rules are followed; one alone is an ablation and equals no block.
        start: where a search's scales start: sqrt(2/l) counted as the `authors` or the `paper` do, or a number.
        scale_lr: of scales that are searched or learned: times the learning rate of everything else. Unless given, 10
            for scales that are learned, and 1 in a search.
        freeze_at: with scales that are learned: the share of the steps after which they are frozen, 0.3 unless given.
        precision: of the forward and backward pass.
        channels_last: memory format of weights and images; on CUDA unless given.
        compile: torch.compile the model; on CUDA unless given.
        tune: let the compiler try kernels on the device, for about a minute more. Unless given, in a long training.
        graph: replay the whole step as a CUDA graph. Unless given, wherever that works.
        eval_every: epochs between evaluations; the last epoch is always evaluated.
        eval_size: side of the images in evaluation; the training size unless given.
        eval_share: share of the shorter side that evaluation sees, in the middle: all of it, as the authors', or 0.875,
            as is common on ImageNet. None is as in earlier versions: all of it, but 0.875 of streamed files.
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
    randaugment_by: RandAugments = "authors"
    color_jitter: float = 0.0
    erasing: float = 0.0
    erasing_with: Paint = "noise"
    kernel: Convention = "authors"
    identity: IdentityStart = "searched"
    rules: Rules = "both"
    start: Counting | float = "authors"
    scale_lr: float | None = None
    freeze_at: float | None = None
    precision: Precision = "fp32"
    channels_last: bool | None = None
    compile: bool | None = None
    tune: bool | None = None
    graph: bool | None = None
    eval_every: int = 1
    eval_size: int | None = None
    eval_share: float | None = 1.0
    eval_batch: int = 500
    workers: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            try:
                msgspec.convert(value, each.type)
            except msgspec.ValidationError as error:
                wanted = _wanted(each.type)
                raise ValueError(f"the recipe's {each.name} must be {wanted}, not {_short(value)}") from error
            bound = BOUNDS.get(each.name)
            if bound is not None and isinstance(value, int | float) and value not in bound:
                raise ValueError(f"the recipe's {each.name} must be {bound}, not {_short(value)}")
        if self.batch_size % self.accumulate:
            raise ValueError(f"a batch of {self.batch_size} cannot be computed in {self.accumulate} equal parts")
        optimizer_named(self.optimizer)
        _ = self.augmentation  # which checks its own fields

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(
            crop_padding=self.crop_padding,
            resized_crop=self.resized_crop,
            flip=self.flip,
            randaugment=self.randaugment,
            randaugment_by=self.randaugment_by,
            color_jitter=self.color_jitter,
            erasing=self.erasing,
            erasing_with=self.erasing_with,
        )


# what a run's recipe.json meant before it had these fields: such a run goes on as it was started
EARLIER: Mapping[str, Any] = {"randaugment_by": "torchvision", "erasing_with": "mean", "eval_share": None}


def _wanted(kind: Any) -> str:
    """A field's type in words."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if not parts:
        return _KINDS[kind]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, parts))
    if get_origin(kind) is tuple:
        return f"{len(parts)} numbers" if float in parts else f"{len(parts)} whole numbers"
    return " or ".join(map(_wanted, parts))


def _short(value: object) -> str:
    """A value as it was given, cut where it is long."""
    text = repr(list(value) if isinstance(value, tuple) else value)  # as files have it
    return text if len(text) <= 80 else f"{text[:77]}..."


def lr_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0; a pure function, so that a checkpoint need not hold it."""
    scale = recipe.batch_size / recipe.lr_batch
    highest, lowest = recipe.lr * scale, recipe.warmup_lr * scale
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    if step < warmup:
        return lowest + (highest - lowest) * (step + 1) / (warmup + 1)
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def with_batch_for(recipe: Recipe, images: int, processes: int = 1) -> Recipe:
    """The recipe, with a batch no larger than the data, in equal parts for processes and accumulation."""
    parts = processes * recipe.accumulate
    fits = images // parts * parts
    if images >= recipe.batch_size:
        return recipe
    if not fits:
        fewer = "lower --accumulate" if recipe.accumulate > 1 else "start fewer processes"
        raise ValueError(f"{counted(images, 'training image')} cannot make {parts} parts of a batch: {fewer}")
    return dataclasses.replace(recipe, batch_size=fits)


def freeze_step(recipe: Recipe, steps_per_epoch: int) -> float:
    """The step, counted from 0, before which scales that are learned are frozen; infinity for those of a search."""
    if recipe.freeze_at is None:
        return math.inf
    return max(1, round(recipe.freeze_at * recipe.epochs * steps_per_epoch))


def on_cuda_unless_given(switch: bool | None, device: torch.device) -> bool:
    """A recipe's switch as given, or else on for CUDA."""
    return device.type == "cuda" if switch is None else switch


def usual_precision(device: torch.device) -> Precision:
    """What a GPU is fastest with, and fp32 elsewhere."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def imagenet() -> Recipe:
    """The paper's training on ImageNet (section 4.1)."""
    return Recipe(size=224, resized_crop=(0.08, 1.0), randaugment=(2, 15))


def small() -> Recipe:
    """The paper's training for small data: flip and crop instead of RandAugment, and more weight decay."""
    return Recipe(crop_padding=4, weight_decay=1e-3)


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


def load_recipe(name_or_path: str | Path) -> Recipe:
    """A recipe by its name, or from a TOML or JSON file whose fields replace those of `base` (a name) in it."""
    name = str(name_or_path)
    path = Path(name)
    if name in RECIPES:
        return RECIPES[name]()
    if path.suffix not in {".toml", ".json"}:
        raise ValueError(f"{name!r} is neither a recipe nor a .toml file: {instead_of(name, RECIPES)}")
    try:
        fields = read_as(path, dict[str, Any]) if path.suffix == ".json" else read_toml(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no recipe file {name!r}") from error
    base = fields.pop("base", None)
    if base is not None and str(base) not in RECIPES:
        raise ValueError(f"{name!r} has the base {str(base)!r}, which no recipe is: {instead_of(base, RECIPES)}")
    return with_fields(Recipe() if base is None else RECIPES[base](), fields, name)


def with_fields(recipe: Recipe, fields: Mapping[str, Any], source: str) -> Recipe:
    """The recipe with other values for some fields, checked by name, type and bounds."""
    known = [field.name for field in dataclasses.fields(Recipe)]
    for name in fields:
        if name not in known:
            raise ValueError(f"{source!r} has the field {name!r}, which no recipe has: {instead_of(name, known)}")
    try:
        return dataclasses.replace(recipe, **tuples(fields))
    except ValueError as error:
        raise ValueError(f"{source!r}: {error}") from error
