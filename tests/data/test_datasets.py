import pytest
import torch

import repopt.data
from repopt.data import load_data
from repopt.data.datasets import DIGITS


def test_the_digits_are_1797_real_images_split_evenly_and_always_alike():
    data = load_data()
    assert (len(data.train), len(data.val), data.size, data.channels) == (1437, 360, 32, 3)
    assert data.train.pixels.shape == (1437, 3, 32, 32)
    assert data.classes == tuple("0123456789")
    assert torch.bincount(data.val.labels).tolist() == [36] * 10
    assert torch.bincount(torch.cat([data.train.labels, data.val.labels])).tolist() == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]
    assert int(data.train.pixels.max()) == 255
    assert data.digest == load_data("digits").digest
    assert DIGITS.with_name("DIGITS_LICENSE.txt").read_text().count("CC BY 4.0") == 1


def test_no_digit_is_in_both_parts():
    data = load_data()
    seen = {image.numpy().tobytes() for image in data.train.pixels}
    assert not any(image.numpy().tobytes() in seen for image in data.val.pixels)


def test_digits_at_another_side():
    assert load_data("digits", size=16).train.pixels.shape == (1437, 3, 16, 16)
    assert load_data("digits", size=16).digest != load_data("digits").digest


def test_fake_data_have_the_shape_that_was_asked_for():
    data = load_data("fake:200,7,24")
    assert data.train.pixels.shape == (200, 3, 24, 24)
    assert len(data.val) == 20
    assert len(load_data("fake:20,7,8").val) == 7
    assert len(data.classes) == 7
    assert int(data.train.labels.max()) == 6
    assert data.digest == load_data("fake:200,7,24").digest
    assert load_data("fake:20,7,8", size=12).train.pixels.shape[-1] == 12


def test_mean_and_deviation_are_the_training_images_own():
    data = load_data("fake:50,5,8")
    values = data.train.pixels.double() / 255
    assert torch.tensor(data.mean).double().allclose(values.mean((0, 2, 3)), atol=1e-6)
    assert torch.tensor(data.std).double().allclose(values.std((0, 2, 3), correction=0), atol=1e-6)


def test_a_limit_keeps_that_many_of_each_part_and_all_classes_alike():
    data = load_data("digits", limit=50)
    assert torch.bincount(data.train.labels).tolist() == [5] * 10
    assert torch.bincount(data.val.labels).tolist() == [5] * 10
    assert len(load_data("digits", limit=10**6).train) == 1437


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "cifar1000:x",
            r"not a source of data \(did you mean 'cifar100'\?\), nor a folder: give one of digits, cifar10",
        ),
        ("mnist", "'mnist' is not a source of data, nor a folder: give one of"),
        ("cifar10", "write 'cifar10:PATH'"),
        ("digits:here", "write 'digits'"),
        ("fake:10,2", "three positive numbers"),
        ("fake:10,0,8", "three positive numbers"),
    ],
)
def test_an_unknown_source_is_refused_in_a_sentence(source, words):
    with pytest.raises(ValueError, match=words):
        load_data(source)


@pytest.mark.parametrize("options", [{"size": 0}, {"limit": 0}, {"broken": "mend"}])
def test_options_out_of_range_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name} (must be|is)"):
        load_data(**options)


def test_what_is_public():
    assert sorted(repopt.data.__all__) == [
        *("Augmentation", "DataSet", "EvalBatches", "ImageFiles", "Images", "TrainBatches", "load_data"),
    ]
