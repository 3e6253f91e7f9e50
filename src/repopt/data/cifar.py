"""CIFAR-10 and CIFAR-100 as they are distributed: binary or python version, packed or unpacked.

A binary record is one label byte (CIFAR-100: the coarse label, then the fine one) and 3,072 pixels, plane by plane. The
python version's pickles are read by `pickles`, as data. No file is read that is larger than the published ones are.
"""

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from repopt.data.images import Images, Splits
from repopt.data.pickles import read_pickle

SIZE = 32
_PIXELS = 3 * SIZE * SIZE
# bytes: the largest published file has 155 million, all files of an archive 187 million
_LARGEST_FILE, _LARGEST_ARCHIVE = 160_000_000, 200_000_000


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """One of the four distributions.

    Attributes:
        folder: what the archive unpacks to.
        archive: its usual name.
        train: files of the training part.
        test: files of the validation part.
        names: file with the classes' names.
        count: of classes.
        label_bytes: before the pixels of a binary record, the last one being the label; 0 for the python version.
        label_key: of the labels in a pickle.
        names_key: of the classes' names in a pickle.
    """

    folder: str
    archive: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    count: int
    label_bytes: int = 0
    label_key: str = ""
    names_key: str = ""


LAYOUTS = {
    "cifar10": (
        _Layout(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            test=("test_batch.bin",),
            names="batches.meta.txt",
            count=10,
            label_bytes=1,
        ),
        _Layout(
            folder="cifar-10-batches-py",
            archive="cifar-10-python.tar.gz",
            train=tuple(f"data_batch_{number}" for number in range(1, 6)),
            test=("test_batch",),
            names="batches.meta",
            count=10,
            label_key="labels",
            names_key="label_names",
        ),
    ),
    "cifar100": (
        _Layout(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            train=("train.bin",),
            test=("test.bin",),
            names="fine_label_names.txt",
            count=100,
            label_bytes=2,
        ),
        _Layout(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            train=("train",),
            test=("test",),
            names="meta",
            count=100,
            label_key="fine_labels",
            names_key="fine_label_names",
        ),
    ),
}


def read_cifar(path: Path, kind: str) -> Splits:
    """Reads CIFAR.

    Args:
        path: an archive, the folder that it unpacks to, or the folder that holds either.
        kind: `cifar10` or `cifar100`, the latter with its fine labels.
    """
    layouts = LAYOUTS[kind]
    if not path.exists():
        raise FileNotFoundError(
            f"there is nothing at {str(path)!r}: give {layouts[0].archive}, {layouts[1].archive}, or a folder with "
            "one of them, packed or not"
        )
    for place in _places(path, layouts):
        files = _unpacked(place, layouts) if place.is_dir() else _packed(place, layouts)
        for layout in layouts:
            missing = [name for name in (*layout.train, *layout.test) if name not in files]
            if not missing:
                return _splits(layout, files, place)
            if len(missing) < len(layout.train) + len(layout.test):
                raise ValueError(
                    f"{str(place)!r} holds a part of {kind} but no {missing[0]!r}: download or unpack it again"
                )
    raise ValueError(
        f"{str(path)!r} holds no {kind}: it must be {layouts[0].archive}, {layouts[1].archive}, the folder "
        f"{layouts[0].folder} or {layouts[1].folder} that these unpack to, or what contains one of them"
    )


def _places(path: Path, layouts: Iterable[_Layout]) -> list[Path]:
    """Where the files may be, the most direct place first."""
    if path.is_file():
        return [path]
    inside = [path / layout.folder for layout in layouts] + [path / layout.archive for layout in layouts]
    return [path, *(place for place in inside if place.is_dir() or place.is_file())]


def _wanted(layouts: Iterable[_Layout]) -> set[str]:
    return {name for layout in layouts for name in (*layout.train, *layout.test, layout.names)}


def _unpacked(folder: Path, layouts: Iterable[_Layout]) -> dict[str, bytes]:
    # `train` may also be a folder, of another data set
    found = [folder / name for name in sorted(_wanted(layouts)) if (folder / name).is_file()]
    return {path.name: _content(path.open("rb"), path, _LARGEST_FILE) for path in found}


def _packed(path: Path, layouts: Iterable[_Layout]) -> dict[str, bytes]:
    """The files of an archive, read without anything being written."""
    folders = {layout.folder for layout in layouts}
    wanted, files = _wanted(layouts), {}
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        content = _content(gzip.GzipFile(path) if zipped else path.open("rb"), path, _LARGEST_ARCHIVE)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                place = Path(member.name)
                if member.size < 0:
                    raise ValueError(
                        f"{member.name!r} in it has less than no bytes"
                    )  # tarfile would go round in circles
                if place.name not in wanted or place.parent.name not in folders | {""} or member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise ValueError(f"{member.name!r} in it is not a plain file")
                files[place.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    except Exception as error:  # a corrupt archive breaks tarfile in many ways
        raise ValueError(
            f"{str(path)!r} is not a readable archive ({error}): it may be cut off, so download it again"
        ) from error
    return files


def _content(file: IO[bytes] | gzip.GzipFile, path: Path, limit: int) -> bytes:
    with file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{str(path)!r} has more than {limit:,} bytes, and CIFAR's own files have fewer")
    return content


def _splits(layout: _Layout, files: Mapping[str, bytes], place: Path) -> Splits:
    read = _binary if layout.label_bytes else _python

    def part(names: Iterable[str]) -> Images:
        pixels, labels = zip(*(read(layout, files[name], place / name) for name in names), strict=True)
        return Images(
            pixels=torch.from_numpy(np.concatenate(pixels)).view(-1, 3, SIZE, SIZE),
            labels=torch.from_numpy(np.concatenate(labels)).long(),
        )

    return Splits(
        classes=_names(layout, files.get(layout.names), place / layout.names),
        size=SIZE,
        train=part(layout.train),
        val=part(layout.test),
    )


def _binary(layout: _Layout, content: bytes, name: Path) -> tuple[np.ndarray, np.ndarray]:
    record = layout.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise ValueError(
            f"{str(name)!r} has {len(content)} bytes, not a multiple of a record's {record}: it may be cut off, so "
            "download it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return _checked(layout, records[:, layout.label_bytes :], records[:, layout.label_bytes - 1], name)


def _python(layout: _Layout, content: bytes, name: Path) -> tuple[np.ndarray, np.ndarray]:
    read = read_pickle(content, name)
    data, listed = read.get("data"), read.get(layout.label_key)
    if not isinstance(data, np.ndarray) or not isinstance(listed, list) or data.shape != (len(listed), _PIXELS):
        raise ValueError(
            f"{str(name)!r} is not a batch of CIFAR: it must hold 'data', bytes of shape (images, {_PIXELS}), and as "
            f"many {layout.label_key!r}"
        )
    return _checked(layout, data, np.array([each if isinstance(each, int) else -1 for each in listed]), name)


def _checked(layout: _Layout, pixels: np.ndarray, labels: np.ndarray, name: Path) -> tuple[np.ndarray, np.ndarray]:
    if not len(labels) or labels.min() < 0 or labels.max() >= layout.count:
        raise ValueError(
            f"{str(name)!r} holds labels other than 0 to {layout.count - 1}: it is corrupt or another data set"
        )
    return pixels, labels


def _names(layout: _Layout, content: bytes | None, name: Path) -> tuple[str, ...]:
    """The classes' names; their numbers where the file is not there."""
    if content is None:
        return tuple(map(str, range(layout.count)))
    if layout.label_bytes:
        names = content.decode("utf-8", "replace").split()
    else:
        listed = read_pickle(content, name).get(layout.names_key)
        names = [entry for entry in listed if isinstance(entry, str)] if isinstance(listed, list) else []
    if len(names) != layout.count:
        raise ValueError(
            f"{str(name)!r} names {len(names)} classes, not {layout.count}: it is corrupt or another data set"
        )
    return tuple(names)
