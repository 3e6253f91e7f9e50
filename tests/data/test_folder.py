import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from data.pictures import class_folders, picture, truncate
from repopt.data import ImageFiles, Images, load_data
from repopt.data.folder import read_folder, read_splits


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_class_folders_become_labelled_images(tmp_path):
    root = class_folders(tmp_path / "pets")
    data = load_data(f"folder:{root}", size=8)
    assert data.classes == ("cat", "dog")
    assert data.train.pixels.shape == (12, 3, 8, 8)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6
    assert data.val.labels.tolist() == [0] * 3 + [1] * 3


def test_the_shorter_side_is_resized_and_the_middle_kept(tmp_path):
    root = class_folders(tmp_path / "pets", size=(48, 24), endings=(".png",))
    data = load_data(f"folder:{root}", size=12)
    image = Image.open(root / "train" / "cat" / "0.png").resize((24, 12), Image.Resampling.BILINEAR)
    middle = np.asarray(image)[:, 6:18].transpose(2, 0, 1)
    assert np.abs(data.train.pixels[0].numpy().astype(int) - middle).max() <= 1


@pytest.mark.parametrize(("size", "side"), [((20, 20), 20), ((20, 16), 224), ((130, 130), 224)])
def test_small_squares_keep_their_side(tmp_path, size, side):
    assert load_data(f"folder:{class_folders(tmp_path / 'pets', 1, 1, size=size)}").size == side


def test_images_of_many_sides_come_out_at_224(tmp_path):
    root = class_folders(tmp_path / "pets", 2, 1, size=(20, 20))
    picture(root / "train" / "cat" / "larger.jpg", size=(30, 30))
    assert load_data(f"folder:{root}").train.pixels.shape[2:] == (224, 224)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1"])
def test_every_kind_of_image_becomes_rgb(tmp_path, mode):
    root = class_folders(tmp_path / "pets", 1, 1, endings=(".png",), mode=mode)
    Image.open(root / "train" / "cat" / "0.png").convert("P").save(root / "train" / "cat" / "1.png", transparency=0)
    assert load_data(f"folder:{root}", size=8).train.pixels.shape == (3, 3, 8, 8)


def test_a_test_folder_stands_in_for_val_and_other_files_are_left_alone(tmp_path):
    root = class_folders(tmp_path / "pets")
    (root / "val").rename(root / "test")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / ".hidden").mkdir()
    picture(root / "train" / "dog" / "deeper" / "LARGE.JPEG")
    data = load_data(f"folder:{root}", size=8)
    assert (len(data.train), len(data.val)) == (13, 6)


def test_the_second_start_reads_the_cache(tmp_path, own_cache):
    root = class_folders(tmp_path / "pets")
    first = load_data(f"folder:{root}", size=8)
    (entry,) = own_cache.iterdir()
    written = entry.stat().st_mtime_ns
    second = load_data(f"folder:{root}", size=8)
    assert second.digest == first.digest
    assert torch.equal(second.train.pixels, first.train.pixels)
    assert entry.stat().st_mtime_ns == written
    assert load_data(f"folder:{root}", size=8, cache=tmp_path / "other").digest == first.digest
    assert len(list((tmp_path / "other").iterdir())) == 1


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path, own_cache):
    """As after a slip of its rights: neither its size nor its time has changed."""
    root = class_folders(tmp_path / "pets", endings=(".png",))
    shot = next((root / "train").rglob("*.png"))
    content, before = shot.read_bytes(), shot.stat()
    shot.write_bytes(bytes(len(content)))
    with pytest.raises(ValueError, match="1 of 18 images"):
        load_data(f"folder:{root}", size=8)
    shot.write_bytes(content)
    os.utime(shot, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(load_data(f"folder:{root}", size=8).train) == 12


def test_hidden_folders_in_a_class_are_left_alone(tmp_path):
    root = class_folders(tmp_path / "pets")
    (root / "train" / "cat" / ".thumbs").mkdir()
    shot = next(path for path in (root / "train").rglob("*") if path.is_file())
    shutil.copy(shot, root / "train" / "cat" / ".thumbs")
    assert len(load_data(f"folder:{root}", size=8).train) == 12


def test_a_changed_file_or_another_side_is_decoded_anew(tmp_path, own_cache):
    root = class_folders(tmp_path / "pets")
    first = load_data(f"folder:{root}", size=8)
    load_data(f"folder:{root}", size=9)
    picture(root / "train" / "cat" / "0.jpg", seed=99)
    changed = load_data(f"folder:{root}", size=8)
    assert changed.digest != first.digest
    assert len(list(own_cache.iterdir())) == 3


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "no cache": lambda content: b"no cache",
    "cut off": lambda content: content[:-9],
    "black images": lambda content: content[:-400] + bytes(400),
    "a bit of a pixel": lambda content: flipped(content, len(content) - 77),
    "a bit of the shape": lambda content: content.replace(b"[18,3,8,8]", b"[9,6,8,8] "),
    "other messages": lambda content: content.replace(rb'"messages":"{}"', rb'"massages":"{}"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again_with_a_sentence(tmp_path, own_cache, damage):
    root = class_folders(tmp_path / "pets")
    digest = load_data(f"folder:{root}", size=8).digest
    (entry,) = own_cache.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGES[damage](whole))
    assert entry.read_bytes() != whole
    with pytest.warns(UserWarning, match=rf"are made again: '{entry}' is damaged"):
        assert load_data(f"folder:{root}", size=8).digest == digest
    assert entry.stat().st_size == len(whole)
    assert load_data(f"folder:{root}", size=8).digest == digest


def test_an_entry_is_on_the_disk_before_it_has_its_name(tmp_path, own_cache, monkeypatch):
    synced, sync = [], os.fsync

    def recorded(file):
        sync(file)
        synced.append((os.fstat(file).st_ino, len(list(own_cache.glob("*.safetensors")))))

    monkeypatch.setattr(os, "fsync", recorded)
    load_data(f"folder:{class_folders(tmp_path / 'pets')}", size=8)
    (entry,) = own_cache.iterdir()
    assert (entry.stat().st_ino, 0) in synced


def test_what_an_interrupted_process_left_in_the_cache_is_removed_in_time(tmp_path, own_cache):
    left, at_work = own_cache / "left.part", own_cache / "at_work.part"
    for folder in (left, at_work):
        folder.mkdir(parents=True)
        (folder / ".unfinished.safetensors").write_bytes(b"0")
    for old in (left / ".unfinished.safetensors", left):
        os.utime(old, (0, 0))
    load_data(f"folder:{class_folders(tmp_path / 'pets')}", size=8)
    assert [at_work] == list(own_cache.glob("*.part"))


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path):
    root = class_folders(tmp_path / "pets")
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match="could not be kept .* give another cache folder"):
        data = load_data(f"folder:{root}", size=8, cache=tmp_path / "file")
    assert len(data.train) == 12


def test_a_limit_decodes_no_more_than_it_keeps(tmp_path):
    root = class_folders(tmp_path / "pets")
    kept = read_folder(root, size=8, limit=4, resident=0).train
    for path in {*root.rglob("*.*")} - {*kept.paths, *read_folder(root, size=8, limit=4, resident=0).val.paths}:
        truncate(path)
    data = load_data(f"folder:{root}", size=8, limit=4)
    assert data.train.labels.tolist() == kept.labels.tolist() == [0, 0, 1, 1]


def test_large_sets_stay_files(tmp_path):
    root = class_folders(tmp_path / "pets")
    small, large = read_folder(root, size=8), read_folder(root, size=8, resident=18 * 3 * 64 - 1)
    assert isinstance(small.train, Images)
    assert isinstance(large.train, ImageFiles)
    assert large.train.labels.tolist() == small.train.labels.tolist()
    assert large.train.paths[0] == root / "train" / "cat" / "0.jpg"
    assert isinstance(read_folder(root, size=8, resident=18 * 3 * 64).train, Images)


def test_the_digest_of_files_follows_their_names_and_sizes_wherever_they_lie(tmp_path):
    root = class_folders(tmp_path / "pets")
    digest = read_folder(root, resident=0).digest
    moved = root.rename(tmp_path / "moved")
    assert read_folder(moved, resident=0).digest == digest
    (moved / "train" / "cat" / "0.jpg").rename(moved / "train" / "cat" / "first.jpg")
    assert read_folder(moved, resident=0).digest != digest


@pytest.mark.parametrize("resident", [0, 1 << 30])
def test_broken_images_are_counted_named_and_left_out(tmp_path, resident):
    root = class_folders(tmp_path / "pets")
    for name in ("train/cat/0.jpg", "train/dog/1.png"):
        truncate(root / name)
    (root / "val" / "dog" / "2.webp").write_bytes(b"no image")
    words = r"3 of 18 images are broken and were left out, the first being '.*train/cat/0\.jpg' \(.+\)$"
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match=words) as caught:
            parts = read_folder(root, size=8, broken="skip", resident=resident)
        assert len(caught) == 1
        assert (len(parts.train), len(parts.val)) == (10, 5)
        assert parts.train.labels.tolist() == [0] * 5 + [1] * 5


def test_a_large_set_is_searched_for_broken_validation_images_before_training(tmp_path):
    root = class_folders(tmp_path / "pets")
    truncate(root / "val" / "dog" / "1.png")
    truncate(root / "train" / "dog" / "1.png")  # found when it is needed
    with pytest.raises(ValueError, match=r"1 of 18 images are broken, the first being '.*val/dog/1\.png'"):
        read_folder(root, size=8, resident=0)


def link_to_nothing(path):
    path.unlink()
    path.symlink_to("nowhere.jpg")


def pipe_nobody_writes_to(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("resident", [0, 1 << 30])
@pytest.mark.parametrize(
    ("spoil", "reason"), [(link_to_nothing, "a link to nothing"), (pipe_nobody_writes_to, "not a file")]
)
def test_what_is_no_file_is_a_broken_image(tmp_path, spoil, reason, resident):
    root = class_folders(tmp_path / "pets")
    listing = read_folder(root, resident=resident).listing
    spoil(root / "train" / "cat" / "0.jpg")
    truncate(root / "val" / "dog" / "1.png")
    words = rf"2 of 18 images are broken.*, the first being '.*train/cat/0\.jpg' \({reason}\)"
    with pytest.raises(ValueError, match=words):
        read_folder(root, resident=resident)
    with pytest.warns(UserWarning, match=words):
        parts = read_folder(root, resident=resident, broken="skip")
    assert (len(parts.train), len(parts.val)) == (11, 5)
    assert parts.train.labels.tolist() == [0] * 5 + [1] * 6
    assert parts.listing == listing


def test_broken_images_stop_the_run_unless_asked_to_skip_them(tmp_path):
    root = class_folders(tmp_path / "pets")
    truncate(root / "train" / "cat" / "0.jpg")
    words = r"1 of 18 images are broken, the first being '.*0\.jpg' .*; train and search leave .* with --broken skip$"
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            load_data(f"folder:{root}", size=8)
    with pytest.warns(UserWarning, match="1 of 18"):
        skipped = load_data(f"folder:{root}", size=8, broken="skip")
    (root / "train" / "cat" / "0.jpg").unlink()
    assert load_data(f"folder:{root}", size=8).digest == skipped.digest


def test_a_part_of_broken_images_alone_is_an_error(tmp_path):
    root = class_folders(tmp_path / "pets", val=1)
    for name in ("cat", "dog"):
        truncate(root / "val" / name / "0.jpg")
    none = pytest.raises(ValueError, match="none of the validation images can be read")
    with pytest.warns(UserWarning, match="2 of 14 images are broken"), none:
        load_data(f"folder:{root}", size=8, broken="skip")


def remove_all(folder):
    for path in folder.rglob("*.*"):
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: root.rename(root.with_name("moved")), "there is no folder '.*pets': give one that holds train/"),
        (lambda root: (root / "train").rename(root / "training"), "holds no folder 'train'"),
        (
            lambda root: [
                (root / name).rename(root / as_) for name, as_ in (("train", "Training"), ("val", "Testing"))
            ],
            "holds 'Testing', 'Training', which look like splits and not like classes: name the folder of the training",
        ),
        (lambda root: (root / "train" / "eel").mkdir(), r"train' has 1 class folder\(s\) without images \('eel'\)"),
        (lambda root: remove_all(root / "val" / "dog"), r"val' has 1 class folder\(s\) without images \('dog'\)"),
        (
            lambda root: [picture(root / "val" / name / "0.png") for name in "fgabcde"],
            r"val' holds 7 class\(es\) that are unknown in training \('a', 'b', 'c', 'd', 'e' and 2 more\)",
        ),
        (
            lambda root: (root / "train" / "cat" / "up").symlink_to(root / "train", target_is_directory=True),
            "train/cat/up/cat' leads back to a folder around it: remove the link",
        ),
        (
            lambda root: (root / "train" / "cat").rename(root / "train" / os.fsdecode(b"caf\xe9")),
            r"the class folder b'.*train/caf\\xe9' has a name that is not UTF-8, which a run cannot record: rename it",
        ),
        (lambda root: remove_all(root / "train"), "there are no images in '.*train': files ending in .jpg"),
        (lambda root: (root / "train").rename(root / "x") and (root / "train").mkdir(), "holds no class folders"),
    ],
)
def test_folders_that_cannot_be_used_are_refused_in_a_sentence(tmp_path, spoil, words):
    root = class_folders(tmp_path / "pets", 2, 1)
    spoil(root)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        load_data(f"folder:{root}")


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_the_validation_images_may_lie_in_a_folder_of_another_name(tmp_path, name):
    root = class_folders(tmp_path / "pets", val=2)
    digest = load_data(f"folder:{root}").digest
    (root / "val").rename(root / name)
    found = load_data(f"folder:{root}")
    assert (found.digest, found.held_out) == (digest, None)


def test_a_class_may_be_called_like_a_split_beside_others(tmp_path):
    root = class_folders(tmp_path / "pets", 4, 0) / "train"
    (root / "cat").rename(root / "Train")
    assert load_data(f"folder:{root}").classes == ("Train", "dog")


@pytest.mark.parametrize("ending", [".jfif", ".jpe", ".JPEG"])
def test_a_jpeg_is_one_whatever_its_ending(tmp_path, ending):
    root = class_folders(tmp_path / "pets", 2, 1)
    digest = load_data(f"folder:{root}").digest
    for path in root.rglob("*.jpg"):
        path.rename(path.with_suffix(ending))
    assert load_data(f"folder:{root}").digest == digest


def test_a_path_to_the_folder_that_is_not_utf_8_is_refused(tmp_path):
    root = class_folders(tmp_path / os.fsdecode(b"caf\xe9"), 2, 1)
    with pytest.raises(ValueError, match=r"caf\\xe9/train/cat' has a name that is not UTF-8"):
        load_data(f"folder:{root}")


def test_one_class_is_refused(tmp_path):
    for number in range(20):
        picture(tmp_path / "pets" / "cat" / f"{number}.png", number)
    with pytest.raises(ValueError, match="holds images of one class, 'cat', and every network is right on these: add"):
        load_data(str(tmp_path / "pets"))


@pytest.mark.parametrize("layout", ["", "train"])
def test_a_folder_one_level_too_high_is_refused_and_the_one_below_is_named(tmp_path, layout):
    high = tmp_path / "level" / layout
    for name in ("cat", "dog"):
        for number in range(2):
            picture(high / "photos" / name / f"{number}.png", number)
    with pytest.raises(ValueError, match=f"would be of one class: give '{high / 'photos'}', or move"):
        load_data(str(tmp_path / "level"))
    assert load_data(str(high / "photos")).classes == ("cat", "dog")


def test_a_class_may_be_missing_from_val(tmp_path):
    root = class_folders(tmp_path / "pets", 2, 1)
    remove_all(root / "val" / "cat")
    (root / "val" / "cat").rmdir()
    data = load_data(f"folder:{root}", size=8)
    assert data.val.labels.tolist() == [1]


@pytest.mark.parametrize("layout", ["", "train"])
def test_without_val_a_tenth_of_each_class_is_held_out_always_the_same(tmp_path, layout):
    counts = {"cat": 24, "dog": 6, "eel": 2, "fox": 1}
    for name, count in counts.items():
        for number in range(count):
            picture(tmp_path / "pets" / layout / name / f"{number}.png", number)
    data, again = (load_data(f"{prefix}{tmp_path / 'pets'}", size=8) for prefix in ("", "folder:"))
    assert data.classes == tuple(counts)
    assert data.val.labels.bincount(minlength=4).tolist() == [2, 1, 1, 0]
    assert data.train.labels.bincount(minlength=4).tolist() == [22, 5, 1, 1]
    assert torch.equal(data.val.pixels, again.val.pixels)
    assert data.held_out == again.held_out is not None
    files = read_splits(tmp_path / "pets")
    assert not {*files.train.paths} & {*files.val.paths}
    (files.train.paths[0]).unlink()
    assert load_data(str(tmp_path / "pets"), size=8).held_out != data.held_out  # other images are held out now


def test_a_val_folder_is_taken_as_it_is(tmp_path):
    root = class_folders(tmp_path / "pets", 4, 2)
    assert load_data(str(root), size=8).held_out is None
    assert len(load_data(str(root), size=8).val) == 4


def test_images_that_are_not_read_are_counted(tmp_path):
    root = class_folders(tmp_path / "pets")
    for name in ("train/cat/7.BMP", "train/cat/8.gif", "val/dog/9.bmp"):
        (root / name).write_bytes(b"never opened")
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    with pytest.warns(UserWarning, match=r"3 files of '.*pets' cannot be read, ending in \.bmp, \.gif: only"):
        parts = read_folder(root, size=8)
    assert (len(parts.train), len(parts.val)) == (12, 6)
