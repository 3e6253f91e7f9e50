"""Tiny data sets in the layouts of COCO and Cityscapes."""

import json

import numpy as np
from PIL import Image

CATEGORIES = [{"id": 1, "name": "person"}, {"id": 13, "name": "stop sign"}, {"id": 18, "name": "dog"}]


def coco_folder(path, split="train", boxes=((1, 18), (13,), ())):
    """Images of 60 x 40, each with one box for each category given: 20 x 10, its corner at (30, 20)."""
    folder = path / f"{split}2017"
    folder.mkdir(parents=True)
    (path / "annotations").mkdir(exist_ok=True)
    read = {"images": [], "annotations": [], "categories": CATEGORIES, "licenses": []}
    for index, categories in enumerate(boxes):
        name = f"{index:012}.jpg"
        Image.new("RGB", (60, 40), (10 * index, 0, 200)).save(folder / name)
        read["images"].append({"id": 100 + index, "file_name": name, "width": 60, "height": 40, "license": 1})
        for category in categories:
            place = {"id": 1 + len(read["annotations"]), "bbox": [30, 20, 20, 10], "area": 200, "iscrowd": 0}
            read["annotations"].append(place | {"image_id": 100 + index, "category_id": category})
    write_annotations(path, read, split)
    return path


def write_annotations(path, read, split="train"):
    (path / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(read))


def cityscapes_folder(path, split="train", kind="labelTrainIds", left=0, right=255, count=2):
    """Images of 64 x 32 whose left half is one class and whose right half is another."""
    labels = np.full((32, 64), left, dtype=np.uint8)
    labels[:, 32:] = right
    images, truth = path / "leftImg8bit" / split / "ulm", path / "gtFine" / split / "ulm"
    for folder in (images, truth):
        folder.mkdir(parents=True)
    for index in range(count):
        Image.new("RGB", (64, 32), (0, 0, 50 * index)).save(images / f"ulm_{index:06}_leftImg8bit.png")
        Image.fromarray(labels).save(truth / f"ulm_{index:06}_gtFine_{kind}.png")
    return path
