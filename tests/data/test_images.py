from pathlib import Path

import pytest
import torch

from repopt.data.images import ImageFiles, Images, balanced, resized_bytes


def test_a_balanced_choice_takes_as_many_of_each_class_as_there_are():
    labels = torch.tensor([0] * 50 + [1] * 50 + [2] * 3)
    rows = balanced(labels, 33)
    assert torch.bincount(labels[rows]).tolist() == [15, 15, 3]
    assert rows.unique().tolist() == rows.tolist()
    assert torch.equal(rows, balanced(labels, 33))
    assert balanced(labels, 1000).tolist() == list(range(103))


def test_images_and_their_files_are_taken_by_rows_or_by_a_mask():
    labels = torch.tensor([3, 4, 5])
    held = Images(pixels=torch.arange(9, dtype=torch.uint8).view(3, 3, 1, 1), labels=labels)
    files = ImageFiles(paths=(Path("a"), Path("b"), Path("c")), labels=labels)
    for rows in (torch.tensor([0, 2]), torch.tensor([True, False, True])):
        assert held.take(rows).pixels.flatten().tolist() == [0, 1, 2, 6, 7, 8]
        assert files.take(rows).paths == (Path("a"), Path("c"))
        assert held.take(rows).labels.tolist() == files.take(rows).labels.tolist() == [3, 5]


def test_a_smaller_choice_is_part_of_a_larger_one():
    labels = torch.arange(200) % 7
    assert set(balanced(labels, 20).tolist()) < set(balanced(labels, 60).tolist())


def test_resizing_keeps_a_flat_image_flat_and_an_image_of_that_side_as_it_is():
    pixels = torch.full((3, 3, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(resized_bytes(pixels, 20), torch.full((3, 3, 20, 20), 77, dtype=torch.uint8))
    assert resized_bytes(pixels, 8) is pixels


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Images(pixels=torch.zeros(2, 3, 4, 4), labels=torch.zeros(2, dtype=torch.long)),
            "must be torch.uint8",
        ),
        (
            lambda: Images(pixels=torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels=torch.zeros(3, dtype=torch.long)),
            r"of shape \(3,\): 2 images need torch.int64",
        ),
        (lambda: ImageFiles(paths=(), labels=torch.zeros(0)), "the labels are torch.float32"),
    ],
)
def test_what_is_no_set_of_images_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
