"""The authors' RandAugment, operation by operation: Pillow's against timm's, and the batch's against Pillow's."""

from collections import Counter

import pytest
import torch
from PIL import Image, ImageChops

from repopt.data.augment import Augmentation
from repopt.data.images import Images
from repopt.data.loaders import TrainBatches
from repopt.data.randaugment import OPERATIONS, drawn, rand_augmented
from repopt.data.resident_randaugment import BATCH_OPERATIONS, rand_augmented_batch
from repopt.data.streaming import as_tensor

HIGH, LOW = 0.9, 0.1  # numbers that decide for a positive sign and bicubic, a negative one and bilinear
# the arguments of timm's function at a level, with its sign
ARGUMENTS = {
    "AutoContrast": lambda level, sign: (),
    "Equalize": lambda level, sign: (),
    "Invert": lambda level, sign: (),
    "Rotate": lambda level, sign: (sign * (level / 10 * 30),),
    "Posterize": lambda level, sign: (int(level / 10 * 4),),
    "Solarize": lambda level, sign: (int(level / 10 * 256),),
    "SolarizeAdd": lambda level, sign: (int(level / 10 * 110),),
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), lambda level, sign: (level / 10 * 1.8 + 0.1,)),
    **dict.fromkeys(("ShearX", "ShearY"), lambda level, sign: (sign * (level / 10 * 0.3),)),
    **dict.fromkeys(("TranslateX", "TranslateY"), lambda level, sign: (sign * (level / 10 * 0.45),)),
}


@pytest.fixture(scope="module")
def picture():
    noise = torch.randint(256, (6, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Image.fromarray(noise.numpy()).resize((48, 36), Image.Resampling.BICUBIC)


def same(image, other):
    return image.size == other.size and ImageChops.difference(image, other).getbbox() is None


def cut_out(picture, level, x, y):
    """The box that differs."""
    return ImageChops.difference(picture, OPERATIONS["Cutout"](picture, drawn(level, (HIGH, HIGH, x, y)))).getbbox()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_operation_is_timms(name, picture):
    from timm.data.auto_augment import NAME_TO_OP

    theirs = NAME_TO_OP[f"{name}Rel" if name.startswith("Translate") else name]
    for level in range(3 if name == "Posterize" else 0, 15):
        for number, sign, resample in ((LOW, -1, Image.Resampling.BILINEAR), (HIGH, 1, Image.Resampling.BICUBIC)):
            ours = OPERATIONS[name](picture, drawn(level, (number, number, 0.5, 0.5)))
            how = {"resample": resample, "fillcolor": (128, 128, 128)}
            assert same(ours, theirs(picture, *ARGUMENTS[name](level, sign), **how)), level


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_picture_without_bits_is_black(level, picture):
    """As Pillow's posterize made it; it refuses 0 bits by now."""
    assert OPERATIONS["Posterize"](picture, drawn(level, (HIGH, HIGH, 0.5, 0.5))).getbbox() is None


def test_cutout_is_a_square_of_four_pixels_a_level_that_ends_at_the_edge(picture):
    assert cut_out(picture, 5, 0.5, 0.5) == (14, 8, 34, 28)
    assert cut_out(picture, 0, 0.5, 0.5) == (23, 17, 25, 19)  # two pixels at least
    assert cut_out(picture, 3, 0.0, 0.99) == (0, 29, 6, 36)
    assert OPERATIONS["Cutout"](picture, drawn(5, (HIGH, HIGH, 0.5, 0.5))).getpixel((24, 18)) == (125, 122, 113)


def test_all_sixteen_and_all_levels_are_drawn_alike_often(monkeypatch, picture):
    """Levels 0 to 14 of 10: a rotation of up to 42 degrees, where torchvision's goes up to 14."""
    seen = Counter()

    def noting(name):
        return lambda image, drawn: seen.update([name, drawn.strength, drawn.sign, drawn.resample]) or image

    for name in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, name, noting(name))
    rand_augmented(picture, 24_000, 15, torch.Generator().manual_seed(0))
    assert set(seen) == {*OPERATIONS, *(level / 10 for level in range(15)), -1, 1, 2, 3}
    assert {*OPERATIONS} == {*ARGUMENTS, "Cutout"}
    assert len(OPERATIONS) == 16
    for kinds, share in ((OPERATIONS, 1500), ([level / 10 for level in range(1, 10)], 1600), ([-1], 12_000)):
        assert all(0.85 * share < seen[kind] < 1.15 * share for kind in kinds)


def test_what_is_drawn_follows_from_the_generator(picture):
    first, again, other = (rand_augmented(picture, 2, 15, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)


def draws_for(name, level, number, x=0.5, y=0.5):
    """The row that decides for an operation, a level of 30, and by one number for sign and interpolation."""
    return [(list(OPERATIONS).index(name) + 0.5) / 16, (level + 0.5) / 30, number, number, x, y]


def test_the_batch_has_the_operations_in_their_order():
    assert list(BATCH_OPERATIONS) == list(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_a_batch_is_pillows_within_rounding(name, picture):
    """All levels, both signs and both interpolations, on a smooth picture, a noisy one, and one of a single colour."""
    noise = torch.randint(20, 220, (36, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    cases = [(level, number) for level in range(30) for number in (LOW, HIGH)]
    draws = torch.tensor([[draws_for(name, level, number, 0.3, 0.9)] for level, number in cases])
    for image in (picture, Image.fromarray(noise.numpy()), Image.new("RGB", (48, 36), (10, 200, 90))):
        found = rand_augmented_batch(as_tensor(image).repeat(len(cases), 1, 1, 1), draws, 30)
        wanted = [OPERATIONS[name](image, drawn(level, (number, number, 0.3, 0.9))) for level, number in cases]
        difference = (found.int() - torch.stack([as_tensor(each).int() for each in wanted])).abs()
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.01


def test_each_image_of_a_batch_has_its_own_operations(picture):
    images = as_tensor(picture).repeat(3, 1, 1, 1)
    twice = [draws_for("Invert", 0, LOW), draws_for("TranslateX", 10, LOW)]
    draws = torch.tensor([twice, twice[::-1], [draws_for("Invert", 0, LOW)] * 2])
    one, other, same = rand_augmented_batch(images, draws, 30)
    grey = torch.full((36,), 128, dtype=torch.uint8)
    assert torch.equal(one[0, :, 0], grey)  # which came in last
    assert torch.equal(other[0, :, 0], 255 - grey)
    assert torch.equal(same, images[0])
    assert torch.equal(images, as_tensor(picture).repeat(3, 1, 1, 1))  # the set itself is not changed


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")],
        ),
    ],
)
def test_a_resident_set_is_augmented_where_it_is_held(device, picture):
    """The same picture many times: each comes out in its own way, as bytes would, and on any device the same."""
    same = as_tensor(picture.resize((32, 32))).repeat(64, 1, 1, 1)
    images = Images(pixels=same, labels=torch.zeros(64, dtype=torch.int64))

    def epoch(where, number=0):
        augmentation = Augmentation(randaugment=(2, 15))
        scale = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "device": torch.device(where), "seed": 0}
        batches = TrainBatches(images, augmentation, batch_size=32, size=32, **scale)
        return torch.cat([pixels for pixels, _ in batches.pixels(number)])

    found = epoch(device)
    assert found.device.type == device
    assert found.shape == same.shape
    assert found.min() >= 0
    assert found.max() <= 255
    assert torch.equal(found.float(), found.float().round())
    assert len(found.cpu().unique(dim=0)) > 48
    assert not torch.equal(found, epoch(device, 1))
    assert ((found.cpu().int() - epoch("cpu").int()).abs() > 2).float().mean() < 0.01
