"""Images in class folders: PATH/train/CLASS/*.jpg, and PATH/val likewise, or valid, validation or test.

Without one of these a tenth of each class is held out, and the class folders may lie in PATH itself. A set that is
small once decoded is kept as pixels, see `cached`; a larger one stays a list of files that are decoded as they are
needed, see `streaming`.
"""

import hashlib
import os
import re
import stat
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from repopt.data.cached import cached
from repopt.data.decoding import ENDINGS, OTHERS, sides
from repopt.data.images import Broken, ImageFiles, Images, Splits, balanced, tenth
from repopt.data.processes import decode, find_broken
from repopt.plans.wording import counted, listed

SIZE = 224
RESIDENT = 4 << 30
_VALIDATION = ("val", "valid", "validation", "test")  # of which the first is taken
_LIKE_SPLITS = {"train", "training", "testing", *_VALIDATION}
_SMALL_SIDE = 128
_SAMPLE = 64


def read_folder(
    path: Path,
    *,
    size: int | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    broken: Broken = "raise",
    eval_size: int | None = None,
    classes: Sequence[str] | None = None,
    resident: int = RESIDENT,
) -> Splits:
    """Reads class folders.

    Args:
        path: the folder with train/ and val/ or test/, or with class folders.
        size: side of the images: the shorter side is resized to it and the middle kept. Unless given, 224, or the side
            that a sample of the images shares where these are square and at most 128 wide.
        limit: keep that many images of each part, balanced over the classes.
        cache: folder for decoded images.
        broken: `raise` stops at broken images, `skip` leaves them out with a warning; links to nothing are broken
            images, too. With `raise` the training images of a large set are decoded only when a batch needs them.
        eval_size: side of validation images that are held in memory, where it is more than `size`.
        classes: the classes, of which the folder may hold some; those that it holds unless given.
        resident: bytes that the decoded images of both parts may take; beyond them files are streamed.
    """
    splits = read_splits(path, classes)
    train, val = splits.train, splits.val
    if splits.others:
        endings = sorted({each.suffix.lower() for each in splits.others})
        warnings.warn(
            f"{counted(len(splits.others), 'file')} of {str(path)!r} cannot be read, ending in {', '.join(endings)}: "
            "only JPEG, PNG and WebP are",
            stacklevel=4,  # load_data's caller
        )
    if limit is not None:
        train, val = (files.take(balanced(files.labels, limit)) for files in (train, val))
    paths, listing = train.paths + val.paths, _digest(path, train, val)
    missing = {place: reason for place, each in enumerate(paths) if (reason := why_no_file(each)) is not None}
    size = size or _common_side([each for place, each in enumerate(train.paths) if place not in missing]) or SIZE
    large = is_large(len(paths), size, resident)
    first = len(train) if large and broken == "raise" else 0
    there = [place for place in range(first, len(paths)) if place not in missing]
    files = [paths[place] for place in there]
    if large:
        _, found = cached(files, "broken", cache, lambda: (torch.empty(0), find_broken(files)))
    else:
        pixels, found = cached(files, str(size), cache, lambda: decode(files, size))
    faults = dict(sorted({**missing, **{there[place]: reason for place, reason in found.items()}}.items()))
    _report(faults, paths, broken)
    train, val = _without(faults, train, val)
    classes, held_out = splits.classes, splits.held_out
    if large:
        digest = _digest(path, train, val, size=lambda each: os.stat(each).st_size)
        return Splits(
            classes=classes, size=size, train=train, val=val, digest=digest, listing=listing, held_out=held_out
        )
    shown = pixels[len(train) :]
    if eval_size is not None and eval_size > size:  # to enlarge the small ones would show less than the files have
        shown, _ = cached(val.paths, str(eval_size), cache, lambda: decode(val.paths, eval_size))
    return Splits(
        classes=classes,
        size=size,
        train=Images(pixels=pixels[: len(train)], labels=train.labels),
        val=Images(pixels=shown, labels=val.labels),
        listing=listing,
        held_out=held_out,
    )


def is_large(images: int, size: int, resident: int = RESIDENT) -> bool:
    """Whether so many images of a side are streamed from their files, and not held in memory."""
    return images * 3 * size * size > resident


@dataclass(frozen=True, kw_only=True)
class SplitFiles:
    """The files of both splits, before any is read; see `Splits`. `others` are images that cannot be read."""

    classes: tuple[str, ...]
    train: ImageFiles
    val: ImageFiles
    others: tuple[Path, ...]
    held_out: str | None = None


def read_splits(path: Path, classes: Sequence[str] | None = None) -> SplitFiles:
    """The names of the files in class folders; of these classes, where they are given."""
    train_folder, val_folder = _split_folders(path)
    classes, train, others = _files(train_folder, classes)
    if val_folder is not None:
        _, val, more = _files(val_folder, classes)
        return SplitFiles(classes=classes, train=train, val=val, others=others + more)
    held = tenth(train.labels)
    if not held.any():
        raise ValueError(
            f"{str(path)!r} has no folder 'val', and no class has two images, of which one could be held out: add some"
        )
    train, val = (train.take(rows) for rows in (~held, held))
    return SplitFiles(classes=classes, train=train, val=val, others=others, held_out=_digest(path, val))


def _split_folders(path: Path) -> tuple[Path, Path | None]:
    """The folders of the training and of the validation images; no second one where there is none."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(path)!r}: give one that holds train/ and val/ with class folders"
        )
    val = next((path / name for name in _VALIDATION if (path / name).is_dir()), None)
    if (path / "train").is_dir():
        return path / "train", val
    if val is not None:
        raise FileNotFoundError(
            f"{str(path)!r} holds no folder 'train': put the class folders of the training images there"
        )
    there = sorted(each.name for each in os.scandir(path) if each.is_dir() and not each.name.startswith("."))
    if there and {name.lower() for name in there} <= _LIKE_SPLITS:
        raise ValueError(
            f"{str(path)!r} holds {listed(there)}, which look like splits and not like classes: name the folder of the "
            "training images 'train', and that of the validation images 'val'"
        )
    return path, None


def _files(folder: Path, classes: Sequence[str] | None) -> tuple[tuple[str, ...], ImageFiles, tuple[Path, ...]]:
    """The classes, the folder's own unless given, its files, labelled by them, and images that cannot be read."""
    own = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not own:
        raise ValueError(
            f"{str(folder)!r} holds no class folders: put the images of each class into a folder of its own"
        )
    for path in (folder / name for name in own):
        if re.search("[\ud800-\udfff]", str(path)):  # what Python makes of bytes that are not UTF-8
            raise ValueError(
                f"the class folder {os.fsencode(path)!r} has a name that is not UTF-8, which a run cannot record: "
                "rename it"
            )
    if unknown := sorted(set(own) - set(own if classes is None else classes)):
        raise ValueError(
            f"{str(folder)!r} holds {len(unknown)} class(es) that are unknown in training ({listed(unknown)}): rename "
            "them, take them away, or train with images of them"
        )
    every_class = tuple(own if classes is None else classes)
    label = {name: number for number, name in enumerate(every_class)}
    paths, labels, empty, others = list[Path](), list[int](), list[str](), list[Path]()
    for name in own:
        every = images_in(folder / name, (*ENDINGS, *OTHERS))
        found = [path for path in every if path.name.lower().endswith(ENDINGS)]
        others += [path for path in every if path.name.lower().endswith(OTHERS)]
        paths += found
        labels += [label[name]] * len(found)
        if not found:
            empty.append(name)
    if len(empty) == len(own):
        raise ValueError(f"there are no images in {str(folder)!r}: files ending in {', '.join(ENDINGS)} are read")
    if empty:
        raise ValueError(
            f"{str(folder)!r} has {len(empty)} class folder(s) without images ({listed(empty)}): files ending in "
            f"{', '.join(ENDINGS)} are read, so add some or remove the folder"
        )
    if classes is None and len(own) == 1 and any(path.parent != folder / own[0] for path in paths):
        raise ValueError(
            f"{str(folder)!r} holds the folder {own[0]!r} alone, whose images lie in folders of its own, so that all "
            f"would be of one class: give {str(folder / own[0])!r}, or move the class folders up"
        )
    if classes is None and len(own) == 1:
        raise ValueError(
            f"{str(folder)!r} holds images of one class, {own[0]!r}, and every network is right on these: add others"
        )
    return every_class, ImageFiles(paths=tuple(paths), labels=torch.tensor(labels)), tuple(others)


def images_in(folder: Path, endings: tuple[str, ...] = ENDINGS) -> list[Path]:
    """The image files in a folder and below it, in order."""
    found = list[Path]()
    for place, folders, names in os.walk(folder, followlinks=True):
        inside = [Path(place), *Path(place).parents[: len(Path(place).relative_to(folder).parts)]]
        if len({os.path.realpath(each) for each in inside}) < len(inside):
            raise ValueError(f"{place!r} leads back to a folder around it: remove the link")
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # os.walk goes on with these
        found += [
            Path(place, name) for name in sorted(names) if name.lower().endswith(endings) and not name.startswith(".")
        ]
    return found


def why_no_file(path: Path) -> str | None:
    """Why there is nothing to read: a link leads nowhere, or this is a pipe; None for a file."""
    try:
        return None if stat.S_ISREG(os.stat(path).st_mode) else "not a file"
    except OSError as error:
        return "a link to nothing" if path.is_symlink() else str(error.strerror)


def _common_side(paths: Sequence[Path]) -> int | None:
    """The side of a sample's images where all are square, small and alike."""
    found = {measured for path in sampled(paths) if (measured := sides(path)) is not None}
    width, height = found.pop() if len(found) == 1 else (0, 0)
    return width if 0 < width == height <= _SMALL_SIDE else None


def sampled(paths: Sequence[Path]) -> Sequence[Path]:
    """A few files from all over the set."""
    return paths[:: max(1, len(paths) // _SAMPLE)][:_SAMPLE]


def _without(faults: Mapping[int, str], train: ImageFiles, val: ImageFiles) -> tuple[ImageFiles, ImageFiles]:
    """Both parts without the broken images, which are counted through train and then val."""
    if not faults:
        return train, val
    kept = torch.ones(len(train) + len(val), dtype=torch.bool)
    kept[list(faults)] = False
    parts = train.take(kept[: len(train)]), val.take(kept[len(train) :])
    for name, part in zip(("training", "validation"), parts, strict=True):
        if not len(part):
            raise ValueError(f"none of the {name} images can be read ({next(iter(faults.values()))}): replace them")
    return parts


def _report(faults: Mapping[int, str], paths: Sequence[Path], broken: Broken) -> None:
    if not faults:
        return
    place, reason = next(iter(faults.items()))
    found, first = (
        f"{len(faults)} of {len(paths)} images are broken",
        f"the first being {str(paths[place])!r} ({reason})",
    )
    if broken == "raise":
        raise ValueError(
            f"{found}, {first}: replace them, or remove them; train and search leave them out with --broken skip"
        )
    warnings.warn(f"{found} and were left out, {first}", stacklevel=5)  # load_data's caller


def _digest(root: Path, *parts: ImageFiles, size: Callable[[Path], int] | None = None) -> str:
    """A digest of the files' names inside the folder and their labels, and of their sizes where these are asked for."""
    digest = hashlib.sha256()
    for part in parts:
        for path, label in zip(part.paths, part.labels.tolist(), strict=True):
            length = "" if size is None else f"{size(path)}\0"
            line = f"{path.relative_to(root).as_posix()}\0{length}{label}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
