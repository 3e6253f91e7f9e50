"""What a user may not expect of a run, a sentence each; None where all is as expected."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repopt.data import DataSet
from repopt.files import read_as, read_lines_as
from repopt.models.saved import CONFIG
from repopt.plans.scales import Scales, shipped
from repopt.plans.wording import counted, listed
from repopt.train.recipe import Recipe, lr_at, usual_precision
from repopt.train.records import RunConfig, ScalesRecord

_CHANCE, _ABOVE = 1.5, 0.2  # times the accuracy of guessing, and a share of what it leaves: what is hardly more
_AGAIN = "train for longer or at another learning rate, on data that the model can learn"
_FEW_STEPS = 3  # of an epoch
_MOVED = 0.01  # of the scales, the least relative change


def about_auto(recipe: Recipe) -> str:
    """What the recipe `auto` chose, with the flags applied."""
    size = "the images' own size" if recipe.size is None else f"{recipe.size} x {recipe.size} pixels"
    augmentation = {
        "random resized crops": recipe.resized_crop is not None,
        f"shifts of up to {recipe.crop_padding} pixels": recipe.crop_padding > 0,
        "flips": recipe.flip,
        "colour jitter": recipe.color_jitter > 0,
        "RandAugment": recipe.randaugment is not None,
        "erasing": recipe.erasing > 0,
        "mixup": recipe.mixup > 0,
    }
    chosen = ", ".join(name for name, on in augmentation.items() if on) or "no augmentation"
    length = f"{counted(recipe.epochs, 'epoch')}, batches of {recipe.batch_size}, weight decay {recipe.weight_decay:g}"
    return f"the recipe auto takes {length}, {size}, {chosen}"


def about_scales(model: str, scales: object, method: str) -> str | None:
    """A note on scales that were chosen for the user."""
    if scales is None:
        return None
    if scales == model:
        learned = "; --scales learn may be better in a longer training" if method == "repopt" else ""
        return f"the scales are those that ship for {model}{learned}"
    such = " with these strides or branches" if model in shipped() else ""
    others = "--scales learn may be better in a longer training" if method == "repopt" else "--scales names others"
    return f"no scales ship for {model}{such}, so they follow the depth, as sqrt(2/l); {others}"


def about_warmup(recipe: Recipe) -> str | None:
    if recipe.warmup_epochs < recipe.epochs:
        return None
    return (
        f"the warm-up of {counted(recipe.warmup_epochs, 'epoch')} does not end within {recipe.epochs}: for a quick try "
        "give --warmup-epochs 0"
    )


def about_freeze(recipe: Recipe) -> str | None:
    """A note on scales that are learned while the learning rate is still small."""
    if recipe.freeze_at is None or recipe.freeze_at * recipe.epochs > recipe.warmup_epochs:
        return None
    return (
        f"the scales are frozen after epoch {recipe.freeze_at * recipe.epochs:.3g}, within the warm-up of "
        f"{recipe.warmup_epochs:g}, and will hardly move: a larger --freeze-at or --scale-lr, or a shorter "
        "--warmup-epochs, lets them"
    )


def about_processes(before: int, now: int) -> str | None:
    """A note if a resumed run has another number of processes."""
    if before == now:
        return None
    begun = "1 process" if before == 1 else f"{before} processes"
    return (
        f"the run was begun in {begun} and goes on in {now}: batch norms see other parts of a batch, so the result is "
        "not that of an uninterrupted run"
    )


def about_precision(recipe: Recipe, device: torch.device) -> str | None:
    """A note on fp32 where the device is made for less."""
    faster = usual_precision(device)
    if recipe.precision != "fp32" or faster == "fp32":
        return None
    return f"fp32 takes several times as long as {faster} on this GPU: --precision {faster} is faster"


def about_data(data: DataSet, limit: int | None) -> list[str | None]:
    """Which data they are, how they are split, and, unless few are taken, what the split leaves out."""
    return [_about_digits(data), _about_split(data), None if limit else _about_classes(data)]


def _about_digits(data: DataSet) -> str | None:
    if data.name != "digits" or not Path("digits").is_dir():
        return None
    return "the built-in digits are taken, not the folder 'digits' that is here: write --data ./digits for the folder"


def _about_split(data: DataSet) -> str | None:
    if data.held_out is None:
        return None
    return (
        f"{data.name!r} has no folder 'val': a tenth of each class is held out, always the same; "
        f"{counted(len(data.val), 'image')} to validate on, {len(data.train)} to train on"
    )


def _about_classes(data: DataSet) -> str | None:
    """A note on classes that no validation image has."""
    counts = torch.bincount(data.val.labels, minlength=len(data.classes)).tolist()
    missing = [name for name, count in zip(data.classes, counts, strict=True) if not count]
    if not missing:
        return None
    return f"the validation images have none of {listed(missing)}, of which the accuracy says nothing"


def about_batch(asked: int, recipe: Recipe, data: DataSet) -> str | None:
    """A note on a batch that had to shrink, or that leaves an epoch with hardly a step."""
    steps = len(data.train) // recipe.batch_size
    if asked == recipe.batch_size:
        few = f"an epoch has only {counted(steps, 'step')}, of {recipe.batch_size} images"
        return f"{few}: a smaller batch or more images would train better" if steps < _FEW_STEPS else None
    return (
        f"a batch of {asked} is larger than the data of {counted(len(data.train), 'image')}: it is {recipe.batch_size} "
        "here, and the learning rate shrinks with it"
    )


def about_length(before: int, recipe: Recipe, taken: int, steps_per_epoch: int) -> str | None:
    """A note on a run that is resumed with another number of epochs."""
    if before == recipe.epochs:
        return None
    return (
        f"the run now ends after epoch {recipe.epochs} instead of {before}, and its cosine follows the new length: the "
        f"learning rate goes on at {lr_at(recipe, taken, steps_per_epoch):.3g}"
    )


def about_accuracy(folder: Path, summary: Mapping[str, Any]) -> str | None:
    """A note on a finished run that may have learned nothing."""
    accuracy = summary["val_accuracy"]
    guessing = summary.get("guessing") or 100 / len(read_as(folder / CONFIG, RunConfig).classes)  # of older runs
    like = as_guessing(accuracy, guessing)
    return like and f"an accuracy of {accuracy:.2f} is {like}: {_AGAIN}"


def about_search(folder: Path) -> str | None:
    """A note on a run that searched scales, in a search or in a training, and can hardly have found any."""
    history = read_lines_as(folder / "scales.jsonl", ScalesRecord)
    if not history:
        return None
    moved = _change(Scales.load(folder / "scales.safetensors"), history[0].scales)
    if moved >= _MOVED:
        return None
    freeze_at = read_as(folder / "recipe.json", dict[str, Any]).get("freeze_at")
    larger = "--scale-lr" if freeze_at == 1 else "--freeze-at or --scale-lr"
    advice = _AGAIN if freeze_at is None else f"a larger {larger} lets them move"
    return f"the scales are {moved:.1%} from where they started, so nothing was searched: {advice}"


def accuracy_of_guessing(labels: Tensor) -> float:
    """The accuracy of always naming the most common class, in percent."""
    return 100 * int(torch.bincount(labels).max()) / len(labels)


def as_guessing(accuracy: float, guessing: float) -> str | None:
    """How an accuracy compares with that of guessing, where it is hardly more."""
    if accuracy > min(_CHANCE * guessing, guessing + _ABOVE * (100 - guessing)):
        return None
    better = "hardly better" if accuracy > guessing else "no better"
    return f"{better} than always naming the most common class ({guessing:.2f})"


def _change(scales: Scales, start: Mapping[str, Mapping[str, float]]) -> float:
    """The distance from the start, channel by channel, relative to the start, or to 1 where all scales start at 0.

    All channels of a branch start alike.
    """
    pairs = [(scale.double(), start[name][branch]) for name, own in scales.items() for branch, scale in own.items()]
    far = math.sqrt(sum(float((scale - begun).square().sum()) for scale, begun in pairs))
    began = math.sqrt(sum(scale.numel() * begun**2 for scale, begun in pairs))
    return far / (began or math.sqrt(sum(scale.numel() for scale, _ in pairs)))
