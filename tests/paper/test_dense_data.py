import json

import pytest
import torch

from paper.dense_data import CITYSCAPES, VOC, read_cityscapes, read_coco
from scenes import cityscapes_folder, coco_folder, write_annotations


def test_coco_is_read_with_the_boxes_of_vocs_classes(tmp_path):
    data = read_coco(coco_folder(tmp_path), "train", size=20)
    assert data.classes == VOC
    assert data.pixels.shape == (1, 3, 20, 20)  # VOC has no stop signs, and the last image is empty
    assert data.pixels.dtype == torch.uint8
    torch.testing.assert_close(data.boxes[0], torch.tensor([[10.0, 10, 50 / 3, 15]]).expand(2, 4))
    assert data.labels[0].tolist() == [1 + VOC.index("person"), 1 + VOC.index("dog")]


def test_all_classes_of_coco_count_in_the_order_of_their_numbers(tmp_path):
    """Not of the file: those of train and val may list them in another order."""
    path = coco_folder(tmp_path)
    read = json.loads((path / "annotations" / "instances_train2017.json").read_text())
    write_annotations(path, {**read, "categories": read["categories"][::-1]})
    data = read_coco(path, "train", size=20, classes=None)
    assert data.classes == ("person", "stop sign", "dog")
    assert [labels.tolist() for labels in data.labels] == [[1, 3], [2]]
    assert len(read_coco(tmp_path, "train", size=20, classes=None, limit=1).boxes) == 1


def test_validation_keeps_images_without_objects(tmp_path):
    data = read_coco(coco_folder(tmp_path, "val"), "val", size=20)
    assert [tuple(boxes.shape) for boxes in data.boxes] == [(2, 4), (0, 4), (0, 4)]


def test_crowds_and_empty_boxes_are_left_out(tmp_path):
    path = coco_folder(tmp_path)
    read = json.loads((path / "annotations" / "instances_train2017.json").read_text())
    read["annotations"][0]["iscrowd"] = 1
    read["annotations"][1]["bbox"] = [30, 20, 0, 10]
    read["annotations"][2]["bbox"] = [50, 20, 20, 10]  # beyond the right border
    write_annotations(path, read)
    data = read_coco(path, "train", size=60, classes=None)
    assert [boxes.tolist() for boxes in data.boxes] == [[[50, 30, 60, 45]]]


def test_an_image_whose_boxes_all_lie_outside_of_it_is_not_trained_on(tmp_path):
    path = coco_folder(tmp_path)
    read = json.loads((path / "annotations" / "instances_train2017.json").read_text())
    for each in read["annotations"]:
        if each["image_id"] == read["annotations"][0]["image_id"]:
            each["bbox"] = [1000, 20, 20, 10]
    write_annotations(path, read)
    assert [len(boxes) for boxes in read_coco(path, "train", size=20, classes=None).boxes] == [1]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_set_without_any_box_of_the_classes_is_refused(tmp_path, split):
    """Its average precision would be -1."""
    with pytest.raises(ValueError, match="no image with a box of the classes wanted, such as cat"):
        read_coco(coco_folder(tmp_path, split), split, size=20, classes=["cat"])


@pytest.mark.parametrize(("kind", "left", "right"), [("labelTrainIds", 13, 255), ("labelIds", 26, 4)])
def test_cityscapes_is_read_with_its_19_classes(tmp_path, kind, left, right):
    """A car is 13 in one kind of its files and 26 in the other; class 4 is none of the 19."""
    data = read_cityscapes(cityscapes_folder(tmp_path, kind=kind, left=left, right=right), "train", size=(16, 32))
    assert data.classes == CITYSCAPES
    assert data.pixels.shape == (2, 3, 16, 32)
    assert data.pixels[1, 2].eq(50).all()
    assert data.labels[0, :, :16].eq(CITYSCAPES.index("car")).all()
    assert data.labels[0, :, 16:].eq(255).all()


def test_train_ids_go_before_ids(tmp_path):
    cityscapes_folder(tmp_path / "one", left=2)
    other = cityscapes_folder(tmp_path / "two", kind="labelIds", left=33)
    for file in (tmp_path / "one").glob("gtFine/*/*/*.png"):
        file.rename(other / file.relative_to(tmp_path / "one"))
    assert read_cityscapes(other, "train", size=(32, 64)).labels.unique().tolist() == [2, 255]


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: read_coco(path, "train"), "there is no annotations/instances_train2017.json"),
        (lambda path: read_coco(coco_folder(path), "val"), "there is no annotations/instances_val2017.json"),
        (
            lambda path: read_coco(coco_folder(path), "train", classes=["cat"]),
            "lists no image with a box of the classes wanted, such as cat",
        ),
        (lambda path: read_cityscapes(path, "train"), r"there is no leftImg8bit/train/CITY/\*_leftImg8bit.png"),
        (
            lambda path: read_cityscapes(cityscapes_folder(path, kind="color"), "train"),
            "has no labels: there is neither ulm_000000_gtFine_labelTrainIds.png nor",
        ),
        (
            lambda path: read_cityscapes(cityscapes_folder(path, left=19), "train"),
            "holds the class 19; there are 0 to 18",
        ),
    ],
)
def test_what_is_no_such_data_set_is_refused_in_a_sentence(read, words, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        read(tmp_path)


def test_broken_files_are_named(tmp_path):
    path = coco_folder(tmp_path / "coco")
    write_annotations(path, {"images": [], "annotations": [{"image_id": "one"}], "categories": []})
    with pytest.raises(ValueError, match=r"instances_train2017.json' is corrupt"):
        read_coco(path, "train")
    scenes = cityscapes_folder(tmp_path / "cityscapes")
    next(scenes.glob("gtFine/*/*/*.png")).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"gtFine_labelTrainIds\.png"):
        read_cityscapes(scenes, "train")
