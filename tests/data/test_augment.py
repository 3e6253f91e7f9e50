import pytest
import torch
from torch.nn.functional import pad

import torchvision_shim  # noqa: F401
from repopt.data.augment import Augmentation, apply, crop_box, draw, draw_operations, mirrored, scaled, scaling

SCALING = scaling((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), torch.device("cpu"))
FLIP, TOP, LEFT, AREA, ASPECT, BRIGHTNESS, CONTRAST, SATURATION = range(8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def augment(pixels, augmentation, size, generator):
    return apply(pixels, draw(len(pixels), generator), augmentation, size, scaling=SCALING)


def noise(count, side=12):
    return torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=generator(1))


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_a_batch_is_what_cropping_and_flipping_one_image_after_another_gives(padding, flip):
    pixels, draws = noise(64), draw(64, generator())
    batch = apply(pixels, draws, Augmentation(crop_padding=padding, flip=flip), 12)
    assert batch.dtype == torch.uint8
    for image, row, result in zip(pixels, draws.tolist(), batch, strict=True):
        top, left = (int(row[column] * (2 * padding + 1)) for column in (TOP, LEFT))
        window = pad(image, [padding] * 4)[:, top : top + 12, left : left + 12]
        expected = window.flip(2) if flip and row[FLIP] < 0.5 else window
        assert torch.equal(result, expected)


def test_every_window_and_both_sides_are_drawn_alike_often():
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(9000, 1, 4, 4)
    batch = augment(image, Augmentation(crop_padding=1, flip=True), 4, generator())
    counts = batch.flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(counts) == 18  # 3 x 3 places, mirrored or not
    assert counts.min() > 400
    assert counts.max() < 600


def test_rows_choose_images_and_nothing_else():
    pixels, draws, rows = noise(20), draw(5, generator()), torch.tensor([3, 3, 0, 19, 7])
    for augmentation in (
        Augmentation(),
        Augmentation(crop_padding=2, flip=True),
        Augmentation(resized_crop=(0.2, 1.0), flip=True, color_jitter=0.3, erasing=0.5),
    ):
        for size in (12, 9):
            chosen = apply(pixels, draws, augmentation, size, rows, SCALING)
            assert chosen.shape == (5, 3, size, size)
            assert torch.equal(chosen, apply(pixels[rows], draws, augmentation, size, scaling=SCALING))


def test_boxes_have_the_drawn_area_an_aspect_in_range_and_lie_inside():
    for height, width in ((50, 50), (60, 50), (45, 50)):
        top, left, tall, wide = crop_box(draw(5000, generator()), (0.08, 0.9), height, width)
        area, aspect = tall * wide, wide * width / (tall * height)
        assert area.min() > 0.0799
        assert area.max() < 0.9001
        assert abs(area.mean() - 0.49) < 0.01
        assert aspect.min() > 0.7499
        assert aspect.max() < 1.3334
        assert (top >= 0).all()
        assert (left >= 0).all()
        assert ((top + tall).max(), (left + wide).max()) <= (1.00001, 1.00001)


def test_a_box_in_a_long_image_stays_inside():
    top, left, tall, wide = crop_box(draw(1000, generator()), (0.5, 1.0), 20, 100)
    assert (top + tall).max() <= 1.00001
    assert (left + wide).max() <= 1.00001
    assert (tall * wide).min() > 0.2


def test_the_box_becomes_the_image():
    draws = draw(40, generator())
    ramp = (torch.arange(64, dtype=torch.uint8) * 4).expand(40, 3, 64, 64)
    batch = apply(ramp, draws, Augmentation(resized_crop=(0.2, 0.6), flip=True), 16)
    _, left, _, wide = crop_box(draws, (0.2, 0.6), 64, 64)
    # the ramp's value at x is 4 (x - 1/2), at the middle of the first and the last of 16 columns
    first, last = (4 * (64 * (left + wide * place) - 0.5) for place in (0.5 / 16, 15.5 / 16))
    first, last = torch.where(mirrored(draws), last, first), torch.where(mirrored(draws), first, last)
    assert batch[:, 0, 0, 0].allclose(first.clamp(0, 252), atol=0.02)
    assert batch[:, 2, 9, 15].allclose(last.clamp(0, 252), atol=0.02)


def test_a_box_of_the_whole_image_is_the_image():
    pixels = noise(8)
    batch = augment(pixels, Augmentation(resized_crop=(1.0, 1.0)), 12, generator())
    assert batch.allclose(pixels.float(), atol=1e-2)


def test_colours_are_jittered_as_torchvision_adjusts_them():
    from torchvision.transforms import functional as adjust

    pixels, draws = noise(16), draw(16, generator())
    batch = apply(pixels, draws, Augmentation(color_jitter=0.4), 12)
    for image, row, result in zip(pixels, (0.6 + 0.8 * draws).tolist(), batch, strict=True):
        expected = adjust.adjust_brightness(image / 255, row[BRIGHTNESS])
        expected = adjust.adjust_contrast(expected, row[CONTRAST])
        expected = adjust.adjust_saturation(expected, row[SATURATION])
        assert (result / 255).allclose(expected, atol=2e-3)  # torchvision's weights of grey have one digit more


@pytest.mark.parametrize("paint", ["mean", "noise"])
def test_erasing_paints_one_box_and_touches_nothing_else(paint):
    pixels = noise(500, side=16)
    draws = draw(500, generator())
    plain = apply(pixels, draws, Augmentation(crop_padding=2, flip=True), 16).float()
    erasing = Augmentation(crop_padding=2, flip=True, erasing=0.4, erasing_with=paint)
    erased = apply(pixels, draws, erasing, 16, scaling=SCALING)
    changed = (erased != plain).any(1)
    share = changed.flatten(1).float().mean(1)
    assert 0.33 < (share > 0).float().mean() < 0.47
    assert share.max() < 0.4
    for image, before, box in zip(erased, plain, changed, strict=True):
        if box.any():
            rows, columns = box.any(1).nonzero(), box.any(0).nonzero()
            whole = torch.zeros_like(box)
            whole[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
            assert torch.equal(whole, box)
            if paint == "mean":
                assert image[:, box].allclose(before.mean((1, 2))[:, None].expand(3, int(box.sum())))


def erased_noise(draws, side=32):
    """The normalized noise of images that are erased, and of no other pixels."""
    pixels = torch.zeros(len(draws), 3, side, side, dtype=torch.uint8)
    erasing = Augmentation(erasing=1.0)
    batch = apply(pixels, draws, erasing, side, scaling=SCALING)
    return [scaled(image, *SCALING)[:, image.ne(0).any(0)] for image in batch]


def test_the_noise_is_standard_normal_after_normalization_and_each_images_own():
    """As timm's RandomErasing in the mode `pixel`, which works on normalized images."""
    boxes = erased_noise(draw(400, generator()))
    values = torch.cat([box.flatten() for box in boxes]).double()
    assert len(values) > 100_000
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs((values**4).mean() - 3) < 0.1  # a normal distribution's
    assert abs((values[1:] * values[:-1]).mean()) < 0.02  # of neighbours
    assert all(abs(torch.corrcoef(box)[0, 1:]).max() < 0.5 for box in boxes if box.shape[1] > 200)  # of channels
    assert len({box.flatten()[0].item() for box in boxes}) > 390


def test_the_noise_follows_from_the_row_alone():
    draws = draw(6, generator())
    together, again = erased_noise(draws), erased_noise(draws[3:])
    assert all(map(torch.equal, together[3:], again))


def test_noise_needs_to_know_the_normalization():
    with pytest.raises(ValueError, match="give scaling"):
        apply(noise(2), draw(2, generator()), Augmentation(erasing=0.5), 12)


def test_other_sides_are_resized_before_they_are_cropped():
    pixels = torch.full((4, 3, 20, 20), 200, dtype=torch.uint8)
    batch = augment(pixels, Augmentation(crop_padding=2, flip=True), 10, generator())
    assert batch.shape == (4, 3, 10, 10)
    assert ((batch == 0) | (batch == 200)).all()
    assert torch.equal(augment(pixels, Augmentation(), 10, generator()), torch.full((4, 3, 10, 10), 200.0))


def test_grey_images_are_augmented_too():
    pixels = noise(4)[:, :1]
    everything = Augmentation(resized_crop=(0.3, 1.0), flip=True, color_jitter=0.2, erasing=1.0)
    grey = scaling((0.5,), (0.2,), torch.device("cpu"))
    assert apply(pixels, draw(4, generator()), everything, 12, scaling=grey).shape == (4, 1, 12, 12)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_normalized_pixels_have_the_mean_and_deviation_taken_out(kind):
    pixels, mean, std = noise(3).to(kind), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    expected = (pixels.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    normalized = scaled(pixels, *scaling(mean, std, pixels.device))
    assert normalized.dtype == torch.float32
    assert normalized.double().allclose(expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop_padding": -1}, "crop_padding must be at least 0, not -1"),
        ({"resized_crop": (0.9, 0.5)}, r"smaller first, not \(0.9, 0.5\)"),
        ({"resized_crop": (0.0, 1.0)}, "two shares of the area"),
        ({"resized_crop": (0.1, 1.0), "crop_padding": 4}, "two ways to crop"),
        ({"randaugment": (0, 15)}, "at least one operation"),
        ({"randaugment": (2, 31)}, "a level of 1 to 30"),
        ({"color_jitter": 1.5}, r"color_jitter must be in \[0, 1\], not 1.5"),
        ({"erasing": -0.1}, "erasing must be"),
        ({"erasing_with": "grey"}, "erasing_with is 'noise' or 'mean', not 'grey'"),
        ({"randaugment_by": "timm"}, "randaugment_by is 'authors' or 'torchvision', not 'timm'"),
    ],
)
def test_augmentations_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Augmentation(**options)


def test_randaugment_needs_its_draws_and_three_channels():
    augmentation = Augmentation(randaugment=(2, 15))
    with pytest.raises(ValueError, match="RandAugment needs draws of its own: give operations"):
        augment(noise(2), augmentation, 12, generator())
    with pytest.raises(ValueError, match="RandAugment is for images of 3 channels, not 1"):
        apply(
            noise(2)[:, :1],
            draw(2, generator()),
            augmentation,
            12,
            operations=draw_operations(2, augmentation, 0),
        )
