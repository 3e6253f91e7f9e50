"""Which classes a finished run sees in images: read, cropped and normalized as `evaluate_run` does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from repopt.data.decoding import ENDINGS
from repopt.data.folder import images_in, is_large, why_no_file
from repopt.data.images import ImageFiles, Images
from repopt.data.loaders import EvalBatches
from repopt.data.processes import decode
from repopt.device import arithmetic, chosen_device
from repopt.train.records import read_info
from repopt.train.runs import image_format, load_run, run_recipe
from repopt.train.step import autocast


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model sees in an image.

    Attributes:
        image: the file.
        classes: names, the most likely first.
        labels: the numbers of these classes.
        probabilities: of these classes.
    """

    image: Path
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    probabilities: tuple[float, ...]


@torch.no_grad()
def predict_run(
    folder: str | Path,
    images: Sequence[str | Path],
    *,
    top: int = 5,
    device: str = "auto",
    best: bool = False,
    trust: bool = False,
) -> list[Prediction]:
    """Predicts the classes of images by the model of a finished run.

    Args:
        folder: the run.
        images: files, or folders with images in them, also further down.
        top: how many classes of each image.
        device: `auto`, `cpu` or `cuda`.
        best: take the weights of the run's best epoch instead of the last one's.
        trust: as `load_run` takes it.
    """
    if top < 1:
        raise ValueError(f"--top must be at least 1, not {top}")
    paths, chosen = _files(images), chosen_device(device)
    trained, recipe = load_run(folder, best=best, trust=trust), run_recipe(folder)
    info = read_info(folder)
    streamed = info.data_listing is not None and is_large(info.train_images + info.val_images, info.image_size)
    model, found = trained.model.to(chosen), list[Prediction]()
    names, shape = trained.config["classes"], image_format(trained)
    side = max(trained.config["size"], shape["size"])
    for first in range(0, len(paths), recipe.eval_batch):
        some = paths[first : first + recipe.eval_batch]
        files = ImageFiles(paths=tuple(some), labels=torch.zeros(len(some), dtype=torch.int64))
        shown = files if streamed else _held(files, side)
        batches = EvalBatches(shown, batch_size=len(some), device=chosen, **shape)
        with arithmetic(tf32=recipe.precision != "fp32"), autocast(recipe, chosen):
            logits = torch.cat([model(x) for x, _ in batches])
        likely = logits.double().softmax(1).topk(min(top, len(names)))
        found += [
            Prediction(
                image=path, classes=tuple(names[each] for each in labels), labels=(*labels,), probabilities=(*shares,)
            )
            for path, labels, shares in zip(some, likely.indices.tolist(), likely.values.tolist(), strict=True)
        ]
    return found


def _held(files: ImageFiles, size: int) -> Images:
    """The images as a folder that is held in memory has them."""
    pixels, broken = decode(files.paths, size)
    for place, reason in broken.items():
        raise ValueError(
            f"{str(files.paths[place])!r} is not a readable image ({reason}): replace it by a JPEG, PNG or WebP, or "
            "leave it out"
        )
    return Images(pixels=pixels, labels=files.labels)


def _files(images: Sequence[str | Path]) -> list[Path]:
    """The files that were named, and those in the folders that were."""
    if not images:
        raise ValueError("name images, or folders with images in them, after the run folder")
    found = list[Path]()
    for path in map(Path, images):
        if not path.is_dir():
            if (reason := why_no_file(path)) is not None:
                raise ValueError(f"there is no image {str(path)!r} ({reason})")
            found.append(path)
        elif inside := images_in(path):
            found += inside
            for each in inside:
                if (reason := why_no_file(each)) is not None:
                    raise ValueError(f"there is no image {str(each)!r} ({reason}): take it away")
        else:
            raise ValueError(f"there are no images in {str(path)!r}: files ending in {', '.join(ENDINGS)} are read")
    return found
