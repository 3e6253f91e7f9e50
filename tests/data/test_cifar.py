import gzip
import os
import pickle
import runpy
import struct
import tarfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from repopt.data import cifar, load_data, pickles
from repopt.data.cifar import LAYOUTS
from repopt.data.pickles import read_pickle

SHARED = Path(__file__).parents[3] / "shared" / "data"
VERSIONS = [(kind, layout) for kind, layouts in LAYOUTS.items() for layout in layouts]
IMAGES = 4  # a file


def records(layout, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(IMAGES, 3072), dtype=np.uint8), rng.integers(layout.count, size=IMAGES)


def published(value):
    """A pickle as the official files are: protocol 2, written by Python 2, whose text is bytes."""
    return b"\x80\x02" + dumped(value) + b"."


def dumped(value):
    if isinstance(value, dict):
        return b"}q\x01(" + b"".join(dumped(each) for item in value.items() for each in item) + b"u"
    if isinstance(value, list):
        return b"]q\x02(" + b"".join(map(dumped, value)) + b"e"
    if isinstance(value, np.ndarray):
        order = b"\x88" if value.flags.f_contiguous else b"\x89"
        return EMPTY_ARRAY + b"(K\x01" + dumped_sides(value) + BYTES + order + text(value.tobytes(order="A")) + b"tb"
    if isinstance(value, int):
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
    return text(value.encode())


def text(content):
    return (b"U" + bytes([len(content)]) if len(content) < 256 else b"T" + struct.pack("<i", len(content))) + content


def dumped_sides(array):
    return b"".join(b"J" + struct.pack("<i", side) for side in array.shape) + b"\x86q\x03"


EMPTY_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85" + text(b"b") + b"\x87Rq\x06"
BYTES = (
    b"cnumpy\ndtype\nq\x07"
    + text(b"u1")
    + b"K\x00K\x01\x87Rq\x08(K\x03"
    + text(b"|")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)


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
                content = {"batch_label": "one of many", layout.label_key: labels.tolist(), "data": pixels}
                (folder / name).write_bytes(published({**content, "filenames": ["a.png"] * IMAGES}))
        parts[part] = tuple(np.concatenate(arrays) for arrays in zip(*made, strict=True))
    names = [f"class_{number}" for number in range(layout.count)]
    if layout.label_bytes:
        (folder / layout.names).write_text("\n".join(names) + "\n\n")
    else:
        (folder / layout.names).write_bytes(published({"num_vis": 3072, layout.names_key: names}))
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


def test_pickles_are_read_as_python_reads_them():
    content = {"data": np.arange(600, dtype=np.uint8).reshape(2, 300), "labels": [1, 2], "names": ["a", "b"], "n": 3072}
    for order in "CF":
        content["data"] = np.array(content["data"], order=order)
        read, expected = (
            read_pickle(published(content), Path("file")),
            pickle.loads(published(content), encoding="latin1"),
        )
        assert read["data"].tolist() == expected.pop("data").tolist() == content["data"].tolist()
        assert expected.items() <= read.items()


class Trap:
    def __reduce__(self):
        return print, ("unpickled",)


# the state of this dtype says that its bytes are the addresses of objects
ADDRESSES = BYTES.replace(b"u1", b"O8").replace(b"K\x00tb", b"K\x3dtb")
HOSTILE = {
    "a call": (pickle.dumps(Trap(), protocol=2), "no GLOBAL __builtin__ print"),
    "a class": (pickle.dumps(OrderedDict(), protocol=2), "no GLOBAL collections OrderedDict"),
    "a later protocol": (pickle.dumps(Trap(), protocol=4), "no FRAME"),
    "objects at any address": (
        published({"fine_label_names": np.full((200, 8), 65, np.uint8)})
        .replace(b"J\x08\0\0\0", b"J\x01\0\0\0")
        .replace(BYTES, ADDRESSES),
        "nothing but arrays of bytes",
    ),
    "a call of text": (b"\x80\x02" + text(b"os system") + b")R.", "nothing but arrays of bytes"),
    "a key that is deeper than the stack": (
        b"\x80\x02})" + b"\x85" * 500_000 + b"Ns.",
        "a tuple where they have a str",
    ),
    "more pixels than there are": (
        published({"data": np.zeros((2, 3072), np.uint8)}).replace(b"J\x02\0\0\0", b"J\xff\xff\xff\x7f"),
        "cannot reshape",
    ),
    "no end": (b"\x80\x02" + b"N" * 3000 + b".", "too long"),
    "a list": (published([1, 2]), "a list where they have a dict"),
    "nothing": (b"", "exhausted"),
    "no pickle": (b"no pickle", "unknown"),
    "a part": (published({"data": np.zeros((2, 3072), np.uint8)})[:-20], "but only"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_pickle_that_is_no_published_file_is_refused(case, tmp_path, capsys, monkeypatch):
    content, words = HOSTILE[case]
    if case == "no end":
        monkeypatch.setattr(pickles, "_OPCODES", 1000)
    folder, _ = written(LAYOUTS["cifar100"][1], tmp_path)
    (folder / "meta").write_bytes(content)
    with pytest.raises(ValueError, match=rf"meta' is not laid out as CIFAR's own files are \(.*{words}.*download it"):
        load_data(f"cifar100:{folder}")
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": "text", "fine_labels": [1, 2]}, "is not a batch of CIFAR"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1]}, "is not a batch of CIFAR"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1, 100]}, "labels other than 0 to 99"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1, "2"]}, "labels other than 0 to 99"),
    ],
)
def test_a_batch_that_is_none_is_named(content, words, tmp_path):
    folder, _ = written(LAYOUTS["cifar100"][1], tmp_path)
    (folder / "train").write_bytes(published(content))
    with pytest.raises(ValueError, match=words):
        load_data(f"cifar100:{folder}")


def header(kind, *, size=0, real=None):
    """Of a member, with a size that tarfile itself would not write."""
    member = tarfile.TarInfo("cifar-100-binary/train.bin")
    member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    if real is not None:  # a sparse one: its map and its size
        block[386:410] = tarfile.itn(real, 12, tarfile.GNU_FORMAT) + tarfile.itn(0, 12, tarfile.GNU_FORMAT)
        block[483:495] = tarfile.itn(real, 12, tarfile.GNU_FORMAT)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


MEMBERS = {
    "a link": (header(tarfile.SYMTYPE), "train.bin' in it is not a plain file"),
    "a terabyte of nothing": (header(tarfile.GNUTYPE_SPARSE, real=1 << 40), "train.bin' in it is not a plain file"),
    "a way back to itself": (
        header(tarfile.REGTYPE)[:512] + header(tarfile.REGTYPE, size=-512),
        "less than no bytes",
    ),
    "more than there is": (header(tarfile.REGTYPE, size=1 << 40), "unexpected end of data"),
    "a name of a terabyte": (header(tarfile.GNUTYPE_LONGNAME, size=1 << 40), ""),
}


@pytest.mark.parametrize("case", MEMBERS)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_a_member_that_no_published_archive_has_is_refused(case, pack, tmp_path):
    content, words = MEMBERS[case]
    (tmp_path / "cifar.tar.gz").write_bytes(pack(content))
    with pytest.raises(ValueError, match=rf"cifar.tar.gz' is not a readable archive \(.*{words}"):
        load_data(f"cifar100:{tmp_path / 'cifar.tar.gz'}")


def test_what_is_larger_than_cifar_is_not_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'/dev/zero' is neither a file nor a folder"):
        load_data("cifar100:/dev/zero")
    os.mkfifo(tmp_path / LAYOUTS["cifar100"][0].archive)
    with pytest.raises(ValueError, match="holds no cifar100"):
        load_data(f"cifar100:{tmp_path}")
    folder, _ = written(LAYOUTS["cifar100"][0], tmp_path)
    os.truncate(folder / "train.bin", 1 << 40)
    with pytest.raises(
        ValueError, match=r"train.bin' has more than 160,000,000 bytes, and CIFAR's own files have fewer"
    ):
        load_data(f"cifar100:{folder}")
    monkeypatch.setattr(cifar, "_LARGEST_ARCHIVE", 1 << 20)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(ValueError, match=r"bomb.tar.gz' has more than 1,048,576 bytes"):
        load_data(f"cifar100:{tmp_path / 'bomb.tar.gz'}")
