import multiprocessing
import os
import sys
from dataclasses import replace

import pytest
import torch

from data.pictures import class_folders, reader_of, truncate
from forked import fork
from repopt.data import Augmentation, EvalBatches, TrainBatches
from repopt.data.decoding import centre_crop, pillow, read_rgb
from repopt.data.folder import read_folder
from repopt.data.streaming import EARLIER_SHARE, as_tensor

EVERYTHING = Augmentation(resized_crop=(0.3, 1.0), flip=True, randaugment=(2, 15), color_jitter=0.4, erasing=0.3)
EARLIER = replace(EVERYTHING, randaugment_by="torchvision", erasing_with="mean")
OPTIONS = {"size": 16, "mean": (0.0,) * 3, "std": (1 / 255,) * 3, "device": torch.device("cpu")}


@pytest.fixture
def files(tmp_path):
    return read_folder(class_folders(tmp_path / "pets", 9, 4, size=(30, 24)), resident=0).train


def epoch(files, augmentation=EVERYTHING, number=0, start=0, **options):
    batches = TrainBatches(files, augmentation, batch_size=6, seed=1, **OPTIONS, **options)
    return list(batches.epoch(number, start))


def same(batches, others):
    assert len(batches) == len(others)
    return all(torch.equal(a, b) for pair in zip(batches, others, strict=True) for a, b in zip(*pair, strict=True))


def test_workers_and_a_late_start_change_nothing(files):
    whole = epoch(files)
    assert len(whole) == 3
    assert whole[0][0].shape == (6, 3, 16, 16)
    workers = min(2, len(os.sched_getaffinity(0)))  # torch warns of more than there are cores
    batches = TrainBatches(files, EVERYTHING, batch_size=6, seed=1, workers=workers, **OPTIONS)
    next(batches.epoch(5))  # an epoch that is broken off
    assert same(list(batches.epoch(0)), whole)
    assert same(list(batches.epoch(0, 1)), whole[1:])
    assert same(list(batches.epoch(1)), epoch(files, number=1))


@pytest.mark.parametrize("augmentation", [Augmentation(crop_padding=2, flip=True), EVERYTHING, EARLIER])
def test_ranks_side_by_side_are_one_process(files, augmentation):
    ranks = [epoch(files, augmentation, rank=rank, world_size=3) for rank in range(3)]
    together = [tuple(map(torch.cat, zip(*step, strict=True))) for step in zip(*ranks, strict=True)]
    assert same(together, epoch(files, augmentation))


@pytest.mark.parametrize(
    "augmentation",
    [Augmentation(resized_crop=(0.3, 1.0)), Augmentation(flip=True), Augmentation(randaugment=(2, 15)), EARLIER],
)
def test_an_image_has_another_draw_in_another_epoch(files, augmentation):
    def by_image(batches):
        return torch.cat([pixels for pixels, _ in batches])

    batches = TrainBatches(files, augmentation, batch_size=18, seed=1, **OPTIONS)
    first, second = (by_image(batches.epoch(number))[batches.order(number).argsort()] for number in (0, 1))
    changed = (first != second).flatten(1).any(1)
    assert changed.float().mean() > 0.3


def test_without_augmentation_training_sees_the_middle(files):
    batches = TrainBatches(files, Augmentation(), batch_size=18, seed=1, **OPTIONS)
    ((pixels, labels),) = batches.epoch(0)
    for row, image, label in zip(batches.order(0).tolist(), pixels, labels.tolist(), strict=True):
        assert torch.equal(image.round().byte(), as_tensor(centre_crop(read_rgb(files.paths[row]), 16)))
        assert label == int(files.labels[row])


@pytest.mark.parametrize(("workers", "share"), [(0, 1.0), (1, 1.0), (0, 0.5), (0, None)])
def test_evaluation_sees_the_middle_of_each_image_once_and_in_order(files, workers, share):
    options = {"workers": workers, "share": share, **OPTIONS}
    ranks = [EvalBatches(files, batch_size=4, rank=rank, world_size=2, **options) for rank in (0, 1)]
    seen = [list(rank) for rank in ranks]
    assert [len(rank) for rank in ranks] == [len(batches) for batches in seen] == [3, 2]
    pixels = torch.cat([seen[number % 2][number // 2][0] for number in range(5)])
    expected = torch.stack([as_tensor(centre_crop(read_rgb(path), 16, share or EARLIER_SHARE)) for path in files.paths])
    assert torch.equal(pixels.round().byte(), expected)


def test_evaluation_resizes_the_shorter_side_to_the_size_and_cuts_out_the_middle_unless_asked_for_less(files):
    """As torchvision's Resize(size) and CenterCrop(size), which the authors' data/build.py composes."""
    (seen, _), *_ = EvalBatches(files, batch_size=18, **OPTIONS)
    for path, image in zip(files.paths, seen, strict=True):
        resized = read_rgb(path).resize((20, 16), pillow().Resampling.BILINEAR)
        assert (image - as_tensor(resized.crop((2, 0, 18, 16)))).abs().max() <= 1  # of rounding


def test_torchs_own_generator_is_left_alone(files):
    before = torch.get_rng_state()
    epoch(files)
    epoch(files, workers=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_file_is_one_sentence_also_from_a_worker(files, workers):
    truncate(files.paths[4])
    words = (
        r"^'.*cat/4\.png' is not a readable image \(.+\): replace it, or remove it; train and search "
        r"leave broken images out with --broken skip$"
    )
    with pytest.raises(ValueError, match=words):
        epoch(files, workers=workers)


def stream(files):
    multiprocessing.current_process()._config["daemon"] = False  # which could have no workers
    epoch(files, Augmentation(), workers=1)


def test_a_worker_that_is_held_up_by_a_file_ends_with_the_process_that_is_killed(files):
    files.paths[0].unlink()
    os.mkfifo(files.paths[0])
    process = fork(stream, files, killed=True)
    with reader_of(files.paths[0]) as gone:
        process.kill()
        process.join(60)
        assert gone()


def test_a_missing_plug_in_is_a_sentence(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    epoch(files)  # the authors' needs no plug-in
    with pytest.raises(ImportError, match=r"by torchvision needs it, .*: pip install -e '\.\[timm\]'"):
        epoch(files, EARLIER)
    monkeypatch.setitem(sys.modules, "PIL", None)
    pillow.cache_clear()
    with pytest.raises(ImportError, match=r"decoded by Pillow, which is not installed: pip install -e '\.\[report\]'"):
        epoch(files, Augmentation())


def test_workers_are_counted_from_zero(files):
    with pytest.raises(ValueError, match="workers must be at least 0, not -1"):
        epoch(files, workers=-1)
