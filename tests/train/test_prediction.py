"""`repopt predict`: what evaluation counts, image by image."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from data.pictures import class_folders, picture, truncate
from repopt.cli import main
from repopt.data import folder, load_data
from repopt.train import prediction
from repopt.train.job import Job
from repopt.train.prediction import predict_run
from repopt.train.recipe import demo
from repopt.train.runs import evaluate_run
from repopt.train.training import train_run


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The validation digits as files, named after their place."""
    folder = tmp_path_factory.mktemp("digits")
    for place, pixels in enumerate(load_data("digits").val.pixels):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{place:03}.png")
    return folder


def test_it_sees_what_evaluation_counts(trained_run, digits):
    labels = load_data("digits").val.labels
    found = predict_run(trained_run, [digits], top=10, device="cpu")
    hits = torch.tensor([each.labels[0] for each in found]) == labels
    (score,) = evaluate_run(trained_run, device="cpu").values()
    assert 100 * hits.double().mean().item() == pytest.approx(score.accuracy)
    shares = torch.tensor(
        [
            dict(zip(each.labels, each.probabilities, strict=True))[label]
            for each, label in zip(found, labels.tolist(), strict=True)
        ]
    )
    assert -shares.log().mean().item() == pytest.approx(score.loss, rel=1e-5)
    for each in found:
        assert sum(each.probabilities) == pytest.approx(1)
        assert list(each.probabilities) == sorted(each.probabilities, reverse=True)


@pytest.mark.parametrize("resident", [True, False])
def test_it_crops_as_evaluation_does_also_where_files_are_streamed(tmp_path, monkeypatch, resident):
    if not resident:
        defaults = {**folder.read_folder.__kwdefaults__, "resident": 0}
        monkeypatch.setattr(folder.read_folder, "__kwdefaults__", defaults)
        monkeypatch.setattr(prediction, "is_large", lambda *_: True)
    root = class_folders(tmp_path / "pets", size=(60, 40))
    recipe = replace(demo(), epochs=6, warmup_epochs=0, batch_size=4, lr=0.02, size=16, eval_size=24, workers=0)
    recipe = replace(recipe, eval_share=0.7)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)
    (score,) = evaluate_run(tmp_path / "run", device="cpu").values()
    found = predict_run(tmp_path / "run", [root / "val"], top=2, device="cpu")
    shares = [dict(zip(each.classes, each.probabilities, strict=True))[each.image.parent.name] for each in found]
    assert -torch.tensor(shares).log().mean().item() == pytest.approx(score.loss, rel=1e-4)


@pytest.mark.parametrize("other", [None, "train"])
def test_a_folder_in_memory_is_evaluated_at_larger_sizes_as_a_streamed_one(tmp_path, monkeypatch, other):
    root = class_folders(tmp_path / "pets", size=(60, 40))
    recipe = replace(demo(), epochs=2, warmup_epochs=0, batch_size=4, lr=0.02, size=16, eval_size=24, workers=0)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)
    data = other and f"folder:{root / other}"
    held = evaluate_run(tmp_path / "run", data, sizes=(24, 32), device="cpu")
    monkeypatch.setattr(folder.read_folder, "__kwdefaults__", {**folder.read_folder.__kwdefaults__, "resident": 0})
    streamed = evaluate_run(tmp_path / "run", data, sizes=(24, 32), device="cpu")
    assert [each.loss for each in held.values()] == pytest.approx([each.loss for each in streamed.values()], rel=1e-5)
    if other is None:
        last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert last["val_loss"] == pytest.approx(held[24].loss, rel=1e-5)


def test_other_images_than_the_run_s_are_evaluated_whole(tmp_path):
    root = class_folders(tmp_path / "pets")
    recipe = replace(demo(), epochs=1, warmup_epochs=0, batch_size=4, size=16)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)
    for limit, images in ((None, 12), (4, 4)):  # class folders alone, of which a training would hold out a tenth
        (score,) = evaluate_run(tmp_path / "run", f"folder:{root / 'train'}", limit=limit, device="cpu").values()
        assert score.images == images


def test_other_images_may_be_of_some_of_the_run_s_classes(tmp_path):
    """Which keep their labels: those of two classes are those of each together. A class that is new is refused."""
    root = class_folders(tmp_path / "pets")
    recipe = replace(demo(), epochs=1, warmup_epochs=0, batch_size=4, size=16)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)

    def losses(*classes):
        for name in classes:
            shutil.copytree(root / "train" / name, tmp_path / "+".join(classes) / name)
        (score,) = evaluate_run(tmp_path / "run", str(tmp_path / "+".join(classes)), device="cpu").values()
        return score.loss * score.images

    assert losses("cat") + losses("dog") == pytest.approx(losses("cat", "dog"), rel=1e-5)
    (tmp_path / "cat" / "cat").rename(tmp_path / "cat" / "cow")
    with pytest.raises(ValueError, match=r"holds 1 class\(es\) that are unknown in training \('cow'\)"):
        evaluate_run(tmp_path / "run", str(tmp_path / "cat"), device="cpu")


def test_other_images_of_the_same_names_are_counted_as_the_run_s_own_with_a_warning(tmp_path):
    """A copy of its folder, perhaps: most of that the run was trained on."""
    root, other = (class_folders(tmp_path / str(side), size=(side, side)) / "train" for side in (24, 40))
    recipe = replace(demo(), epochs=1, warmup_epochs=0, batch_size=4, size=16)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, tmp_path / "run", device="cpu", quiet=True)
    with pytest.warns(
        UserWarning, match="has the file names of the run's own data, so only 2 images that the run held"
    ):
        (score,) = evaluate_run(tmp_path / "run", f"folder:{other}", device="cpu").values()
    assert score.images == 2


def test_a_run_that_left_broken_images_out_does_so_where_its_folder_is_given(tmp_path):
    root = class_folders(tmp_path / "pets")
    truncate(root / "train" / "cat" / "0.jpg")
    recipe = replace(demo(), epochs=1, warmup_epochs=0, batch_size=4, size=16)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe, broken="skip")
    with pytest.warns(UserWarning, match="left out"):
        train_run(job, tmp_path / "run", device="cpu", quiet=True)
    moved = root.rename(tmp_path / "moved")
    with pytest.warns(UserWarning, match="left out"):
        assert evaluate_run(tmp_path / "run", f"folder:{moved}", device="cpu")


def test_photos_get_the_names_of_their_folders_also_by_the_best_weights(tmp_path, monkeypatch, capsys):
    """At another size and share than in training; of odd sides and of other modes than RGB."""
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", size=(40, 40))
    recipe = replace(demo(), epochs=2, warmup_epochs=0, batch_size=4, eval_size=24, eval_share=0.8)
    job = Job(method="branches", model="other_nets:small", data="photos", recipe=recipe)
    train_run(job, "run", device="cpu", quiet=True)
    found = predict_run("run", ["photos/val"], top=1, device="cpu", trust=True)
    hits = [each.classes[0] == each.image.parent.name for each in found]
    (score,) = evaluate_run("run", device="cpu", trust=True).values()
    assert 100 * sum(hits) / len(hits) == pytest.approx(score.accuracy)
    picture(tmp_path / "grey.png", 3, (31, 90), "L")
    with pytest.raises(SystemExit, match="0"):
        main(["predict", "run", "grey.png", "photos/val/cat/0.jpg", "--trust", "--best", "--device", "cpu", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [each["image"] for each in said] == ["grey.png", "photos/val/cat/0.jpg"]
    assert {*said[0]["classes"]} == {"cat", "dog"}  # there are two, fewer than five


def test_a_line_for_each_image(trained_run, digits, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "predict",
                str(trained_run),
                str(digits / "000.png"),
                str(digits / "007.png"),
                "--top",
                "2",
                "--device",
                "cpu",
            ]
        )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{digits / '000.png'}: ")
    assert second.count("%") == 2


BAD = {
    "no image": ("run nowhere.jpg", "there is no image 'nowhere.jpg' (No such file or directory)"),
    "no images": ("run", "name images, or folders with images in them"),
    "not an image": ("run notes.png", "'notes.png' is not a readable image (cannot identify image file"),
    "an empty folder": (
        "run empty",
        "there are no images in 'empty': files ending in .jpg, .jpeg, .jpe, .jfif, .png, .webp are read",
    ),
    "a pipe in a folder": ("run pipes", "there is no image 'pipes/a.png' (not a file): take it away"),
    "no classes": ("run photo.png --top 0", "--top must be at least 1, not 0"),
    "no run": ("empty photo.png", "'empty' is not a run folder: it has no model.safetensors"),
    "someone's factory": ("theirs photo.png", "give --trust"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence(case, trained_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run").symlink_to(trained_run)
    shutil.copytree(trained_run, "theirs")
    config = json.loads(Path("theirs/config.json").read_text())
    Path("theirs/config.json").write_text(json.dumps({**config, "model": "bad_l:net"}))
    Path("notes.png").write_text("buy milk")
    Path("empty").mkdir()
    Path("pipes").mkdir()
    os.mkfifo("pipes/a.png")
    picture(tmp_path / "photo.png")
    words, sentence = BAD[case]
    with pytest.raises(SystemExit, match="2"):
        main(["predict", *words.split(), "--device", "cpu"])
    said = capsys.readouterr()
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out
