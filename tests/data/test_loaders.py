import pytest
import torch
from PIL import Image

from repopt.data import Augmentation, EvalBatches, Images, TrainBatches, load_data
from repopt.data.augment import draw_operations, mixed_seed, scaled, scaling
from repopt.data.randaugment import OPERATIONS, drawn
from repopt.data.streaming import as_tensor

CPU = torch.device("cpu")
EVERYTHING = Augmentation(resized_crop=(0.3, 1.0), flip=True, randaugment=(2, 15), color_jitter=0.4, erasing=0.3)
AUGMENTATIONS = {"nothing": Augmentation(), "crop and flip": Augmentation(crop_padding=2, flip=True), "all": EVERYTHING}
PLAIN = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "device": CPU}


@pytest.fixture(scope="module")
def data():
    return load_data("fake:103,7,12")


def numbered(count, side=2):
    """Images that say in their pixels which one they are."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, side, side).contiguous()
    return Images(pixels=pixels, labels=torch.arange(count))


def train_batches(data, augmentation=EVERYTHING, **options):
    chosen = {"batch_size": 20, "size": 12, "mean": data.mean, "std": data.std, "device": CPU, "seed": 3, **options}
    return TrainBatches(data.train, augmentation, **chosen)


def same(batches, others):
    batches, others = list(batches), list(others)
    assert len(batches) == len(others)
    return all(torch.equal(a, b) for pair in zip(batches, others, strict=True) for a, b in zip(*pair, strict=True))


def test_an_epoch_gives_each_image_at_most_once_and_drops_the_last_short_batch():
    batches = TrainBatches(numbered(103), Augmentation(), batch_size=20, size=2, seed=0, **PLAIN)
    seen = [(pixels, labels) for pixels, labels in batches.epoch(0)]
    assert len(seen) == len(batches) == 5
    labels = torch.cat([labels for _, labels in seen])
    assert len(labels.unique()) == 100
    assert torch.equal((torch.cat([pixels for pixels, _ in seen])[:, 0, 0, 0] * 255).round().long(), labels)


def test_batches_are_normalized_floats(data):
    batches = train_batches(data, Augmentation())
    pixels, labels = next(batches.epoch(4))
    rows = batches.order(4)[:20]
    assert (pixels.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert torch.equal(pixels, scaled(data.train.pixels[rows], *scaling(data.mean, data.std, CPU)))
    assert torch.equal(labels, data.train.labels[rows])


@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_pixels_are_the_batches_before_normalization(data, augmentation):
    batches = train_batches(data, augmentation)
    raw = list(batches.pixels(4, 1))
    assert same([(scaled(pixels, *batches.scaling), labels) for pixels, labels in raw], batches.epoch(4, 1))
    assert {pixels.dtype for pixels, _ in raw} == {torch.float32 if augmentation is EVERYTHING else torch.uint8}


@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
@pytest.mark.parametrize("size", [12, 224])  # of which a group is all batches, and two
def test_an_epoch_started_in_its_middle_goes_on_as_the_whole_one(data, augmentation, size):
    whole = list(train_batches(data, augmentation, size=size).epoch(2))
    assert len(whole) == 5
    for start in (0, 3, 5):
        assert same(train_batches(data, augmentation, size=size).epoch(2, start), whole[start:])


@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
@pytest.mark.parametrize("size", [12, 224])
def test_ranks_side_by_side_are_one_process(data, augmentation, size):
    ranks = [train_batches(data, augmentation, size=size, rank=rank, world_size=4).epoch(1) for rank in range(4)]
    together = [tuple(map(torch.cat, zip(*step, strict=True))) for step in zip(*ranks, strict=True)]
    assert same(together, train_batches(data, augmentation, size=size).epoch(1))


def test_epochs_and_seeds_have_orders_and_draws_of_their_own(data):
    batches = train_batches(data)
    assert same(batches.epoch(0), batches.epoch(0))
    assert not torch.equal(batches.order(0), batches.order(1))
    assert not torch.equal(batches.order(0), train_batches(data, seed=4).order(0))
    one = Images(pixels=data.train.pixels[:1], labels=data.train.labels[:1])
    seen = [
        next(TrainBatches(one, EVERYTHING, batch_size=1, size=12, seed=seed, **PLAIN).epoch(epoch))[0]
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(torch.cat(seen).unique(dim=0)) == 4


def test_torchs_own_generator_is_left_alone(data):
    before = torch.get_rng_state()
    list(train_batches(data).epoch(0))
    list(EvalBatches(data.val, batch_size=4, size=12, **PLAIN))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_evaluation_sees_each_image_once_over_all_ranks(world_size):
    ranks = [
        EvalBatches(numbered(50), batch_size=8, size=2, rank=rank, world_size=world_size, **PLAIN)
        for rank in range(world_size)
    ]
    seen = [list(rank) for rank in ranks]
    assert [len(batches) for batches in seen] == [len(rank) for rank in ranks]
    labels = torch.cat([labels for batches in seen for _, labels in batches])
    assert labels.sort().values.tolist() == list(range(50))
    if world_size == 1:
        assert labels.tolist() == list(range(50))


def test_evaluation_has_no_more_batches_than_images():
    assert len(EvalBatches(numbered(3), batch_size=8, size=2, rank=1, world_size=2, **PLAIN)) == 0


@pytest.mark.parametrize("size", [12, 8, 20])
def test_evaluation_at_another_side_resizes(data, size):
    batches = EvalBatches(data.val, batch_size=6, size=size, mean=data.mean, std=data.std, device=CPU)
    pixels = torch.cat([pixels for pixels, _ in batches])
    assert pixels.shape == (len(data.val), 3, size, size)
    if size == 12:
        assert torch.equal(pixels, scaled(data.val.pixels, *scaling(data.mean, data.std, CPU)))


def test_evaluation_may_see_the_middle_alone(data):
    ((seen, _),) = EvalBatches(data.val, batch_size=len(data.val), size=6, share=0.5, **PLAIN)
    ((middle, _),) = EvalBatches(
        Images(pixels=data.val.pixels[:, :, 3:9, 3:9], labels=data.val.labels),
        batch_size=len(data.val),
        size=6,
        **PLAIN,
    )
    assert torch.equal(seen, middle)
    with pytest.raises(ValueError, match=r"share must be more than 0 and at most 1, not 1\.1"):
        EvalBatches(data.val, batch_size=6, size=6, share=1.1, **PLAIN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 104}, "a batch of 104 is larger than the data of 103 images: give a batch size of at most 103"),
        ({"batch_size": 20, "world_size": 3}, "a batch of 20 cannot be shared by 3 processes"),
        ({"batch_size": 0}, "batch_size and size must be at least 1"),
        ({"world_size": 2, "rank": 2}, "rank must be in 0 to 1"),
    ],
)
def test_batches_that_cannot_be_are_refused(data, options, words):
    with pytest.raises(ValueError, match=words):
        train_batches(data, **options)


def test_steps_and_augmentations_that_are_not_there_are_refused_at_once(data):
    with pytest.raises(ValueError, match="there is no step 6 of epoch 0: epochs count from 0 and have steps 0 to 5"):
        train_batches(data).epoch(0, 6)
    with pytest.raises(ValueError, match="torchvision's RandAugment works on streamed files only"):
        train_batches(data, Augmentation(randaugment=(2, 15), randaugment_by="torchvision"))


def test_randaugment_is_the_pillow_versions_on_the_images_of_a_batch(data):
    """Its draws are a function of seed and epoch, and leave those of the other augmentations alone."""
    plain, augmented = (
        train_batches(data, Augmentation(crop_padding=2, flip=True, randaugment=each)) for each in (None, (1, 15))
    )
    draws = draw_operations(100, Augmentation(randaugment=(1, 15)), mixed_seed("randaugment", 3, 4))
    before, after = (torch.cat([pixels for pixels, _ in batches.pixels(4)]) for batches in (plain, augmented))
    kinds = list(OPERATIONS.values())
    for image, found, (kind, level, *others) in zip(before, after, draws[:, 0].tolist(), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        wanted = kinds[int(kind * 16)](picture, drawn(int(level * 15), others))
        assert (as_tensor(wanted).int() - found).abs().max() <= 1


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_on_a_gpu_nothing_waits_for_it_within_an_epoch(data, augmentation):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    device = torch.device("cuda")
    batches = train_batches(data, augmentation, device=device)
    evaluation = EvalBatches(data.val, batch_size=6, size=16, mean=data.mean, std=data.std, device=device)
    list(batches.epoch(0))
    torch.cuda.set_sync_debug_mode("error")
    try:
        seen = [*batches.epoch(1), *evaluation]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(tensor.device.type == "cuda" for batch in seen for tensor in batch)
