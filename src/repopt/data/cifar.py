"""CIFAR-10 and CIFAR-100 as they are distributed: binary or python version, packed or unpacked.

A binary record is one label byte (CIFAR-100: the coarse label, then the fine one) and 3,072 pixels, plane by plane. The
python version's pickles are read by `pickles`, which makes nothing but arrays and containers.
"""

import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from repopt.data.images import Images, Splits
from repopt.data.pickles import load_arrays

SIZE = 32
_PIXELS = 3 * SIZE * SIZE


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
    return [path, *(place for place in inside if place.exists())]


def _wanted(layouts: Iterable[_Layout]) -> set[str]:
    return {name for layout in layouts for name in (*layout.train, *layout.test, layout.names)}


def _unpacked(folder: Path, layouts: Iterable[_Layout]) -> dict[str, bytes]:
    # `train` may also be a folder, of another data set
    return {name: (folder / name).read_bytes() for name in _wanted(layouts) if (folder / name).is_file()}


def _packed(path: Path, layouts: Iterable[_Layout]) -> dict[str, bytes]:
    """The files of an archive, read without anything being written."""
    folders = {layout.folder for layout in layouts}
    wanted, files = _wanted(layouts), {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                place = Path(member.name)
                if place.name in wanted and place.parent.name in folders | {""}:
                    content = archive.extractfile(member)
                    if content is not None:
                        files[place.name] = content.read()
            while archive.fileobj is not None and archive.fileobj.read(1 << 20):
                pass  # to the very end, where the checksum is
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        first = str(error).partition("\n")[0]  # tarfile has a line for each compression it tried
        raise ValueError(
            f"{str(path)!r} is not a readable archive ({first}): it may be cut off, so download it again"
        ) from error
    return files


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
    read = load_arrays(content, name)
    data, labels = read.get("data"), np.asarray(read.get(layout.label_key, ()))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), _PIXELS):
        raise ValueError(
            f"{str(name)!r} is not a batch of CIFAR: it must hold 'data', bytes of shape (images, {_PIXELS}), and as "
            f"many {layout.label_key!r}"
        )
    return _checked(layout, data, labels, name)


def _checked(layout: _Layout, pixels: np.ndarray, labels: np.ndarray, name: Path) -> tuple[np.ndarray, np.ndarray]:
    whole = labels.ndim == 1 and len(labels) and np.issubdtype(labels.dtype, np.integer)
    if not whole or labels.min() < 0 or labels.max() >= layout.count:
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
        listed = load_arrays(content, name).get(layout.names_key, ())
        names = [entry.decode() if isinstance(entry, bytes) else str(entry) for entry in listed]
    if len(names) != layout.count:
        raise ValueError(
            f"{str(name)!r} names {len(names)} classes, not {layout.count}: it is corrupt or another data set"
        )
    return tuple(names)
