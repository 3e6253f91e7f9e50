"""Table 7's data, in the layouts that COCO and Cityscapes are published in, as uint8 tensors.

    PATH/annotations/instances_train2017.json, PATH/train2017/*                                    COCO, val likewise
    PATH/leftImg8bit/train/CITY/*_leftImg8bit.png, PATH/gtFine/train/CITY/*_gtFine_labelIds.png    Cityscapes

All images of a set get one size, so that they fit into one tensor. Where Cityscapes has `labelTrainIds` they are read
instead of `labelIds`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from repopt.data.decoding import BrokenImageError, pillow, read_rgb
from repopt.files import read_as

Split = Literal["train", "val"]

IGNORED = 255

# Pascal VOC's 20 classes, as COCO spells them
VOC = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "boat", "bird", "cat", "dog", "horse"),
    *("sheep", "cow", "bottle", "chair", "couch", "potted plant", "dining table", "tv"),
)
CITYSCAPES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
_LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)  # of these classes, in order


@dataclass(frozen=True, kw_only=True)
class BoxedImages:
    """Images and the objects in them.

    Attributes:
        pixels: (N, 3, H, W), uint8.
        boxes: for each image (n, 4), float32: left, top, right and bottom in pixels.
        labels: for each image (n,), int64; 0 is the background, 1 the first class.
        classes: their names.
    """

    pixels: Tensor
    boxes: Sequence[Tensor]
    labels: Sequence[Tensor]
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """Images and the class of every pixel.

    Attributes:
        pixels: (N, 3, H, W), uint8.
        labels: (N, H, W), uint8; 255 does not count.
        classes: their names.
    """

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...] = CITYSCAPES


@dataclass(frozen=True, kw_only=True)
class CocoImage:
    """An image as COCO's file lists it."""

    id: int
    file_name: str
    width: Annotated[int, Meta(gt=0)]
    height: Annotated[int, Meta(gt=0)]


@dataclass(frozen=True, kw_only=True)
class CocoObject:
    """An object in one of the images: left, top, width and height of its box."""

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0


@dataclass(frozen=True, kw_only=True)
class CocoCategory:
    """A class, whose number is not its place in the list."""

    id: int
    name: str


@dataclass(frozen=True, kw_only=True)
class CocoFile:
    """What a file of COCO's annotations must hold; it may hold more."""

    images: list[CocoImage]
    annotations: list[CocoObject]
    categories: list[CocoCategory]


def read_coco(
    path: Path, split: Split, *, size: int = 224, classes: Sequence[str] | None = VOC, limit: int | None = None
) -> BoxedImages:
    """Reads COCO.

    Crowds and boxes without an area inside their image are left out, and so are training images without an object.

    Args:
        path: the folder with annotations/.
        split: train or val, of whatever year.
        size: every image is resized to a square of this side.
        classes: names of those to keep; all of the file where None, in the order of their numbers.
        limit: keep the first that many images.
    """
    files = sorted((path / "annotations").glob(f"instances_{split}*.json"))
    if not files:
        raise FileNotFoundError(f"there is no annotations/instances_{split}2017.json in {str(path)!r}, as COCO has it")
    read, folder = read_as(files[0], CocoFile), path / files[0].stem.removeprefix("instances_")
    numbered = sorted(read.categories, key=lambda category: category.id)
    names = tuple(category.name for category in numbered) if classes is None else tuple(classes)
    label_of = {each.id: names.index(each.name) + 1 for each in read.categories if each.name in names}
    objects: dict[int, list[CocoObject]] = defaultdict(list)
    for each in read.annotations:
        if each.category_id in label_of and not each.iscrowd and min(each.bbox[2:]) > 0:
            objects[each.image_id].append(each)
    found = [(image, *_targets(objects[image.id], image, size, label_of)) for image in read.images]
    kept = [each for each in found if split == "val" or len(each[1])][:limit]
    if not any(len(boxes) for _, boxes, _ in kept):
        raise ValueError(f"{str(files[0])!r} lists no image with a box of the classes wanted, such as {names[0]}")
    images, boxes, labels = zip(*kept, strict=True)
    pixels = _stacked(lambda file: _pixels(file, (size, size)), [folder / image.file_name for image in images])
    return BoxedImages(pixels=pixels, boxes=boxes, labels=labels, classes=names)


def read_cityscapes(path: Path, split: Split, *, size: tuple[int, int] = (256, 512)) -> Scenes:
    """Reads Cityscapes.

    Args:
        path: the folder with leftImg8bit/ and gtFine/.
        split: train or val.
        size: height and width that every image is resized to.
    """
    images = sorted((path / "leftImg8bit" / split).glob("*/*_leftImg8bit.png"))
    if not images:
        raise FileNotFoundError(
            f"there is no leftImg8bit/{split}/CITY/*_leftImg8bit.png in {str(path)!r}, as Cityscapes has it"
        )
    return Scenes(
        pixels=_stacked(lambda file: _pixels(file, size), images),
        labels=_stacked(lambda file: _classes(_label_file(path, split, file), size), images),
    )


def placed(data: Any, device: torch.device) -> Any:
    """A data set with all of its tensors on a device."""
    moved = {
        name: value.to(device) if isinstance(value, Tensor) else [each.to(device) for each in value]
        for name, value in vars(data).items()
        if name != "classes"
    }
    return replace(data, **moved)


def _stacked(read: Callable[[Path], Tensor], files: Sequence[Path]) -> Tensor:
    with ThreadPoolExecutor() as pool:  # Pillow decodes and resizes without Python's lock
        return torch.stack(list(pool.map(read, files)))


def _pixels(file: Path, size: tuple[int, int]) -> Tensor:
    image = read_rgb(file)
    if (image.height, image.width) != size:
        image = image.resize(size[::-1], pillow().Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _targets(
    objects: Sequence[CocoObject], image: CocoImage, size: int, label_of: Mapping[int, int]
) -> tuple[Tensor, Tensor]:
    """Boxes and labels of what is inside the image."""
    left, top, width, height = torch.tensor([each.bbox for each in objects]).reshape(-1, 4).unbind(1)
    corners = torch.stack([left, top, left + width, top + height], dim=1)
    boxes = (corners * (size / torch.tensor([image.width, image.height] * 2))).clamp(0, size)
    inside = (boxes[:, :2] < boxes[:, 2:]).all(dim=1)
    labels = torch.tensor([label_of[each.category_id] for each in objects], dtype=torch.int64)
    return boxes[inside], labels[inside]


def _label_file(path: Path, split: Split, image: Path) -> Path:
    stem = image.name.removesuffix("_leftImg8bit.png")
    folder = path / "gtFine" / split / image.parent.name
    files = [folder / f"{stem}_gtFine_{kind}.png" for kind in ("labelTrainIds", "labelIds")]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise FileNotFoundError(f"{str(image)!r} has no labels: there is neither {files[0].name} nor {files[1].name}")
    return found


def _classes(file: Path, size: tuple[int, int]) -> Tensor:
    try:
        with pillow().open(file, formats=("PNG",)) as image:
            labels = np.array(image.resize(size[::-1], pillow().Resampling.NEAREST))
    except OSError as error:
        raise BrokenImageError(file, str(error)) from error
    if file.name.endswith("_labelIds.png"):
        table = np.full(256, IGNORED, dtype=np.uint8)
        table[list(_LABEL_IDS)] = range(len(_LABEL_IDS))
        labels = table[labels]
    wrong = labels[(labels >= len(CITYSCAPES)) & (labels != IGNORED)]
    if wrong.size:
        raise ValueError(
            f"{str(file)!r} holds the class {wrong.flat[0]}; there are 0 to {len(CITYSCAPES) - 1}, and 255"
        )
    return torch.from_numpy(labels)
