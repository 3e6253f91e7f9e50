import pickle
import runpy
import tarfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from repopt.data import load_data
from repopt.data.cifar import LAYOUTS
from repopt.data.pickles import load_arrays

SHARED = Path(__file__).parents[3] / "shared" / "data"
VERSIONS = [(kind, layout) for kind, layouts in LAYOUTS.items() for layout in layouts]
IMAGES = 4  # a file


def records(layout, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(IMAGES, 3072), dtype=np.uint8), rng.integers(layout.count, size=IMAGES)


def written(layout, parent):
    """A tiny CIFAR in one of its four versions, and the pixels and labels of its parts."""
    folder, parts = parent / layout.folder, {}
    folder.mkdir(parents=True)
    for part, names in (("train", layout.train), ("test", layout.test)):
        made = [records(layout, seed) for seed, _ in enumerate(names, start=len(part))]
        for name, (pixels, labels) in zip(names, made, strict=True):
            if layout.label_bytes:
                coarse = np.zeros((IMAGES, layout.label_bytes - 1), np.uint8)
                np.concatenate([coarse, labels[:, None].astype(np.uint8), pixels], 1).tofile(folder / name)
            else:
                # as the official files: protocol 2 and keys of bytes
                content = {b"data": pixels, layout.label_key.encode(): labels.tolist(), b"batch_label": b"one of many"}
                (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        parts[part] = tuple(np.concatenate(arrays) for arrays in zip(*made, strict=True))
    names = [f"class_{number}" for number in range(layout.count)]
    if layout.label_bytes:
        (folder / layout.names).write_text("\n".join(names) + "\n\n")
    else:
        (folder / layout.names).write_bytes(pickle.dumps({layout.names_key: names}, protocol=2))
    return folder, parts


def packed(layout, parent):
    folder, parts = written(layout, parent / "made")
    with tarfile.open(parent / layout.archive, "w:gz") as archive:
        archive.add(folder, layout.folder)
    return parent / layout.archive, parts


PLACES = {
    "the folder itself": lambda layout, path: written(layout, path),
    "its parent": lambda layout, path: (path, written(layout, path)[1]),
    "the archive": packed,
    "the archive's folder": lambda layout, path: (path, packed(layout, path)[1]),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "layout"), VERSIONS, ids=[layout.folder for _, layout in VERSIONS])
def test_every_version_is_read_wherever_it_lies(kind, layout, place, tmp_path):
    path, parts = PLACES[place](layout, tmp_path)
    data = load_data(f"{kind}:{path}")
    assert data.classes == tuple(f"class_{number}" for number in range(layout.count))
    for part, name in ((data.train, "train"), (data.val, "test")):
        pixels, labels = parts[name]
        assert np.array_equal(part.pixels.numpy(), pixels.reshape(-1, 3, 32, 32))
        assert part.labels.tolist() == labels.tolist()


def test_both_versions_of_one_set_have_one_digest(tmp_path):
    digests = {load_data(f"cifar100:{written(layout, tmp_path)[0]}").digest for layout in LAYOUTS["cifar100"]}
    assert len(digests) == 1


def test_classes_without_a_file_of_names_are_numbers(tmp_path):
    layout = LAYOUTS["cifar10"][0]
    folder, _ = written(layout, tmp_path)
    (folder / layout.names).unlink()
    assert load_data(f"cifar10:{folder}").classes == tuple("0123456789")


@pytest.mark.slow
def test_the_real_cifar100(tmp_path):
    if not (SHARED / "cifar100").is_dir():
        pytest.skip("CIFAR-100 is not beside this checkout")
    unpack = runpy.run_path(str(SHARED / "unpack.py"))
    data = load_data(f"cifar100:{unpack['unpack_cifar100'](tmp_path)}")
    assert torch.bincount(data.train.labels).tolist() == [500] * 100
    assert torch.bincount(data.val.labels).tolist() == [100] * 100
    assert data.classes[:2] == ("apple", "aquarium_fish")
    assert data.mean == pytest.approx((0.5071, 0.4865, 0.4409), abs=1e-4)
    assert data.std == pytest.approx((0.2673, 0.2564, 0.2762), abs=1e-4)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda folder: cut(folder / "train.bin"),
            r"train\.bin' has 12289 bytes, not a multiple of a record",
        ),
        (lambda folder: (folder / "test.bin").write_bytes(b""), "has 0 bytes"),
        (lambda folder: (folder / "test.bin").unlink(), "holds a part of cifar100 but no 'test.bin'"),
        (lambda folder: (folder / "test.bin").write_bytes(b"\xff" * 3074), "holds labels other than 0 to 99"),
        (lambda folder: (folder / "fine_label_names.txt").write_text("apple"), "names 1 classes, not 100"),
    ],
)
def test_a_damaged_binary_version_is_named(spoil, words, tmp_path):
    folder, _ = written(LAYOUTS["cifar100"][0], tmp_path)
    spoil(folder)
    with pytest.raises(ValueError, match=words):
        load_data(f"cifar100:{folder}")


def test_a_cut_off_archive_and_a_file_that_is_none_are_named(tmp_path):
    path, _ = packed(LAYOUTS["cifar100"][1], tmp_path)
    cut(path)
    with pytest.raises(ValueError, match=r"is not a readable archive .*download it again"):
        load_data(f"cifar100:{path}")
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is not a readable archive"):
        load_data(f"cifar100:{path}")


def test_a_path_without_cifar_says_what_is_wanted(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is nothing at .*give cifar-10-binary"):
        load_data(f"cifar10:{tmp_path / 'none'}")
    written(LAYOUTS["cifar100"][0], tmp_path)
    with pytest.raises(ValueError, match="holds no cifar10: it must be"):
        load_data(f"cifar10:{tmp_path}")


class Trap:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": Trap()}, "train' asks for .*print, which no array needs, so it was not loaded"),
        ({"data": OrderedDict()}, "asks for collections.OrderedDict"),
        ({"data": np.zeros((2, 3072)), "fine_labels": [1, 2]}, "is not a batch of CIFAR"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1]}, "is not a batch of CIFAR"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1, 100]}, "labels other than 0 to 99"),
        ([1, 2], "holds a list, not a dictionary"),
    ],
)
def test_a_pickle_that_asks_for_more_than_arrays_is_refused(content, words, tmp_path, capsys):
    folder, _ = written(LAYOUTS["cifar100"][1], tmp_path)
    (folder / "train").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=words):
        load_data(f"cifar100:{folder}")
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({"data": np.zeros(9)}, protocol=2)[:-20]])
def test_a_damaged_pickle_is_named(content):
    with pytest.raises(ValueError, match="'some/file' is not a readable pickle"):
        load_arrays(content, Path("some/file"))


def test_text_may_not_be_encoded_into_anything_but_bytes():
    content = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R."
    with pytest.raises(ValueError, match=r"asks for _codecs\.encode to zip"):
        load_arrays(content, Path("file"))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_lists_and_text_are_read(protocol):
    content = {"data": np.arange(6).reshape(2, 3), b"labels": [1, 2], "names": [b"a", "b"]}
    read = load_arrays(pickle.dumps(content, protocol=protocol), Path("file"))
    assert torch.from_numpy(read["data"]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (read["labels"], read["names"]) == ([1, 2], [b"a", "b"])
