"""Table 7: backbones that are fine-tuned for dense prediction."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import repopt
from made_up import QUICK
from paper.dense_data import CITYSCAPES, IGNORED, placed
from paper.dense_tasks import Detection, Segmentation, fine_tuned, steps
from paper.jobs import Scope
from paper.pages import table
from paper.table7 import _BEYOND, _LONGER, _TASKS
from paper.tables import reproduce, rows_left, table_named
from paper.view import read_rows
from paper.workshop import Workshop
from repopt.train.recipe import demo
from scenes import cityscapes_folder, coco_folder

pytest.importorskip("segmentation_models_pytorch", reason="segmentation is smp's")
pytest.importorskip("torchvision", reason="detection is torchvision's")
pytest.importorskip("faster_coco_eval", reason="it computes AP")

FULL = Scope(mini64=Path("mini"), coco=Path("coco"), cityscapes=Path("cityscapes"))
RECIPE = replace(demo(), epochs=1, batch_size=4, lr_batch=4, lr=0.01, warmup_epochs=0, precision="fp32")
SCENES, BOXES = Segmentation(size=(64, 128), width=16), Detection(size=64, width=32)


@pytest.mark.slow
def test_quick_is_two_arms_of_two_steps(tmp_path):
    pytest.importorskip("onnxruntime", reason="it computes INT8")
    made, path = table_named("table7"), tmp_path / "table7.csv"
    workshop = Workshop(folder=tmp_path / "runs", device="cpu")
    assert reproduce(made, QUICK, workshop, path) == []
    lines = read_rows(path)
    assert {(line["what"], line["task"], line["arm"]) for line in lines} == {
        (what, task, arm)
        for what in ("cost", "accuracy")
        for task in ("segmentation", "detection")
        for arm in ("RepVGG", "RepOpt, kept")
    }
    for line in lines:
        assert line["hardware"]
        assert "torchvision" in line["libraries"]
        if line["what"] == "cost":
            assert float(line["images_per_second"]) > 0
        else:
            assert int(line["train_images"]) == 2 * int(line["batch_size"])
            assert 0 <= float(line["val_accuracy"]) <= 100
            assert 0 < float(line["loss"]) < 100
            assert bool(line["int8_accuracy"]) == (line["task"] == "segmentation")
            assert bool(line["ap50"]) == (line["task"] == "detection")
    assert rows_left(made, QUICK, path)[0] == []
    assert "mIoU, INT8" in table(tmp_path, "table7")
    # a backbone for both tasks
    assert len(list(workshop.folder.glob("*-weights/summary.json"))) == 2


@pytest.mark.parametrize(("task", "count"), [("segmentation", 3), ("detection", 2)])
def test_each_arm_tries_its_learning_rates_on_seed_0(task, count):
    rows = [row.key for row in table_named("table7").rows(FULL) if row.key["what"] == "accuracy"]
    arms = {row["arm"] for row in rows if row["task"] == task}
    assert len(arms) == 3 * (count - 1)
    for arm in arms:
        rates = {row["rate"] for row in rows if (row["task"], row["arm"], row["seed"]) == (task, arm, 0)}
        assert len(rates) == count + ((task, arm) in _BEYOND)


def test_longer_detection_has_one_seed_and_twice_the_epochs():
    rows = [row.key for row in table_named("table7").rows(FULL) if row.key["task"] == _LONGER]
    assert {(row["what"], row["seed"]) for row in rows} == {("accuracy", 0)}
    assert len(rows) == 3 * 3
    assert _TASKS[_LONGER].recipe == replace(_TASKS["detection"].recipe, epochs=20)


@pytest.mark.parametrize("missing", ["mini64", "coco", "cityscapes"])
def test_a_data_set_that_is_missing_is_named_before_anything_is_trained(missing, tmp_path):
    scope = replace(FULL, **{missing: None})
    with pytest.raises(ValueError, match=f"^this table needs data: give --{missing}, the folder that holds its"):
        reproduce(table_named("table7"), scope, Workshop(folder=tmp_path, device="cpu"), tmp_path / "table7.csv")


def test_the_official_layouts_are_read(tmp_path):
    coco, cityscapes = coco_folder(tmp_path), cityscapes_folder(tmp_path)
    assert Detection().read(coco, "train").pixels.shape == (1, 3, 224, 224)
    assert Segmentation().read(cityscapes, "train").pixels.shape == (2, 3, 256, 512)


@pytest.mark.parametrize("task", [SCENES, BOXES], ids=["segmentation", "detection"])
def test_one_seed_is_one_training(task):
    def losses():
        torch.manual_seed(0)
        network = task.network("repopt_vgg_nano", None)
        planned = repopt.plan(network, scales="ones")
        return torch.stack([*steps(task, network, planned, data, RECIPE)])

    data = task.made_up(8)
    first = losses()
    assert len(first) == 2
    torch.testing.assert_close(losses(), first)


def test_keeping_the_repoptimizer_changes_the_backbone_and_nothing_of_the_first_loss():
    """The weights are those of the pretraining in both cases; only the steps differ."""
    task, data, found = SCENES, SCENES.made_up(4), {}
    for kept in (False, True):
        torch.manual_seed(0)
        network = task.network("repopt_vgg_nano", None)
        planned = repopt.plan(network, scales="ones") if kept else None
        (loss,) = steps(task, network, planned, data, RECIPE)
        found[kept] = loss, network.get_submodule("encoder.model").stage0.conv.weight.detach()
    torch.testing.assert_close(found[True][0], found[False][0])
    assert not torch.allclose(found[True][1], found[False][1])


def test_a_crop_that_is_neither_rescaled_nor_moved_is_the_image_or_its_mirror():
    task = replace(SCENES, zoom=(1.0, 1.0))
    pixels = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 19, (8, 32, 32), dtype=torch.uint8)
    images, classes = task.augmented(pixels, labels)
    flipped = set()
    for image, wanted, target, label in zip(images, pixels.float(), classes, labels.long(), strict=True):
        mirrored = not torch.equal(target, label)
        flipped.add(mirrored)
        torch.testing.assert_close(target, label.flip(-1) if mirrored else label)
        torch.testing.assert_close(image, wanted.flip(-1) if mirrored else wanted, atol=0.01, rtol=0)
    assert flipped == {False, True}


def test_images_are_moved_as_finely_under_autocast():
    """To a pixel alone, zoomed images would have steps that those to be tested on do not have."""
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(SCENES.augmented(*noise(4)))
    torch.testing.assert_close(*found)


def noise(count):
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (count, 3, 64, 128), dtype=torch.uint8)
    return pixels, torch.randint(0, 19, (count, 64, 128), dtype=torch.uint8)


def test_the_sides_of_boxes_can_learn_from_the_start():
    """They stand behind a ReLU."""
    torch.manual_seed(0)
    network, sides = BOXES.network("repopt_vgg_nano", None).eval(), []
    network.get_submodule("head.regression_head").register_forward_hook(lambda _, __, found: sides.append(found[0]))
    with torch.no_grad():
        network([torch.rand(3, 64, 64) for _ in range(4)])
    assert (sides[0] > 0).float().mean() > 0.95


def test_what_lies_outside_of_a_smaller_image_does_not_count():
    task = replace(SCENES, zoom=(0.5, 0.5))
    pixels, labels = torch.full((2, 3, 32, 32), 200, dtype=torch.uint8), torch.full((2, 32, 32), 7, dtype=torch.uint8)
    images, classes = task.augmented(pixels, labels)
    assert classes.unique().tolist() == [7, IGNORED]
    assert (classes == 7).sum().item() == 2 * 16 * 16
    assert images[:, 0][classes == IGNORED].mean() < 10  # but for the border, which is interpolated


def test_boxes_are_flipped_with_their_images():
    """Whatever it draws, the detector sees the box around the white square."""
    seen = []

    def detector(images, targets):
        seen.extend(zip(images, targets, strict=True))
        return {"loss": torch.zeros(())}

    data = BOXES.made_up(16)
    for image, box in zip(data.pixels, data.boxes, strict=True):
        left, top, right, bottom = box[0].int().tolist()
        image.zero_()[:, top:bottom, left:right] = 255
    BOXES.loss(detector, data, torch.arange(16))
    for image, target in seen:
        left, top, right, bottom = target["boxes"][0].int().tolist()
        assert image[:, top:bottom, left:right].eq(1).all()
        assert image.sum() == 3 * (bottom - top) * (right - left)
    moved = [not torch.equal(target["boxes"], box) for (_, target), box in zip(seen, data.boxes, strict=True)]
    assert True in moved
    assert False in moved


def test_a_perfect_segmenter_has_an_miou_of_100():
    data = SCENES.made_up(2)
    logits = torch.nn.functional.one_hot(data.labels.long(), len(CITYSCAPES)).permute(0, 3, 1, 2).float()
    assert SCENES.score(lambda pixels: logits, data)["val_accuracy"] == pytest.approx(100)


def test_a_perfect_detector_has_an_ap_of_100():
    data = placed(BOXES.made_up(4), torch.device("cpu"))
    found = [
        {"boxes": box, "labels": label, "scores": torch.ones(1)}
        for box, label in zip(data.boxes, data.labels, strict=True)
    ]
    assert BOXES.score(lambda images: found, data) == pytest.approx({"val_accuracy": 100, "ap50": 100})


def test_boxes_are_computed_in_float32_where_convolutions_are_in_bf16():
    torch.manual_seed(0)
    network, seen = BOXES.network("repopt_vgg_nano", None), {}
    network.anchor_generator.register_forward_hook(lambda _, __, anchors: seen.update(anchors=anchors[0]))
    network.head.regression_head.register_forward_hook(lambda _, __, found: seen.update(inside=found[0]))
    network.head.register_forward_hook(lambda _, __, found: seen.update(outside=found["bbox_regression"]))
    next(steps(BOXES, network, None, BOXES.made_up(4), replace(RECIPE, precision="bf16")))
    assert [seen[name].dtype for name in ("inside", "outside", "anchors")] == [
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]


def test_a_loss_that_is_not_finite_ends_the_training():
    task = SCENES
    network = task.network("repopt_vgg_nano", None)
    network.get_submodule("encoder.model").stage0.conv.weight.data.fill_(torch.nan)
    with pytest.raises(repopt.train.loop.DivergedError, match="not finite after epoch 1"):
        fine_tuned(task, network, None, task.made_up(4), RECIPE)


def test_less_than_a_batch_is_refused():
    network = SCENES.network("repopt_vgg_nano", None)
    with pytest.raises(ValueError, match="3 images are fewer than a batch of 4"):
        next(steps(SCENES, network, None, SCENES.made_up(3), RECIPE))


def test_half_precision_without_loss_scaling_is_refused():
    task, recipe = SCENES, replace(RECIPE, precision="fp16")
    with pytest.raises(ValueError, match="give --precision bf16 or fp32, not fp16"):
        next(steps(task, task.network("repopt_vgg_nano", None), None, task.made_up(4), recipe))
