"""A newcomer's first commands: what is left out is chosen, what was chosen is said, and the run succeeds."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from data.pictures import picture
from interrupted import interrupt_in
from made_up import small_job
from repopt.cli import _base_recipe, main
from repopt.cli.search import _check_place
from repopt.data.survey import Survey, survey
from repopt.plans.scales import Scales
from repopt.train.auto_recipe import auto_recipe, recipe_for
from repopt.train.best_weights import BEST
from repopt.train.notes import about_accuracy, about_auto, about_search, accuracy_of_guessing
from repopt.train.recipe import demo, imagenet, lr_at, search, small, with_batch_for
from repopt.train.runs import evaluate_run, run_data, run_recipe
from repopt.train.training import train_run
from report.folders import write_run

SHORT = ["--epochs", "2", "--warmup-epochs", "0", "--device", "cpu"]


def notes(words, capsys):
    """What a command says aside, in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in words])
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    return [line.removeprefix("note: ") for line in said.out.splitlines() if line.startswith("note: ")]


def refused(words, capsys):
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in words])
    assert done.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Class folders with pictures of odd sizes, in the working directory; no val/."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    for name, count in (("cat", 14), ("dog", 12), ("eel", 7)):
        for number in range(count):
            sides = draw.randint(70, 90), draw.randint(70, 120)
            picture(tmp_path / "photos" / name / f"{number}.jpg", draw.randrange(10**6), sides)
    return tmp_path / "photos"


def test_a_folder_of_photos_needs_no_other_flag(photos, capsys):
    said = notes(["train", "--data", "photos", *SHORT], capsys)
    assert said[0].startswith("the recipe auto takes 2 epochs, batches of 8, weight decay 0.001, 64 x 64 pixels, ran")
    assert said[1].startswith("the scales are those that ship for repopt_vgg_nano; --scales learn may be better")
    assert "a tenth of each class is held out, always the same; 3 images to validate on, 30 to train on" in said[2]
    run = json.loads(Path("runs/train/run.json").read_text())
    assert (run["train_images"], run["val_images"], run["data"]) == (30, 3, "photos")
    summary = json.loads(Path("runs/train/summary.json").read_text())
    assert evaluate_run("runs/train", device="cpu")[64].accuracy == pytest.approx(summary["val_accuracy"])


def test_a_folder_called_digits_is_told_from_the_built_in_digits(photos, capsys):
    words = ["train", "--method", "sgd", *SHORT, "--epochs", "1", "--limit", "40"]
    taken = "the built-in digits are taken, not the folder 'digits' that is here: write --data ./digits for the folder"
    assert taken not in notes([*words, "--data", "digits", "--out", "a"], capsys)
    photos.rename("digits")
    assert taken in notes([*words, "--data", "digits", "--out", "b"], capsys)
    assert taken not in notes([*words, "--data", "./digits", "--out", "c"], capsys)
    assert [json.loads(Path(run, "config.json").read_text())["classes"][0] for run in "abc"] == ["0", "0", "cat"]


def test_a_run_keeps_its_own_split(photos, capsys):
    """Or says that it cannot: images that were trained on must not be evaluated on."""
    notes(["train", "--data", "photos", "--method", "sgd", *SHORT], capsys)
    assert notes(["train", "--resume", "--epochs", "3"], capsys)[1].startswith("'photos' has no folder 'val'")
    for number in range(20, 40):
        picture(photos / "cat" / f"{number}.jpg", number, (80, 80))
    words = "its validation images are not those that were held out for the run"
    assert words in refused(["eval", "runs/train"], capsys)
    assert words in refused(["eval", "runs/train", "--data", photos], capsys)
    assert words in refused(["quantize", "runs/train", "--data", "photos", "--no-speed"], capsys)
    assert "holds other images than when the run" in refused(["train", "--resume", "--epochs", "4"], capsys)


def test_classes_that_no_validation_image_has_are_named(photos, capsys):
    (photos / "train").mkdir()
    for name in ("cat", "dog", "eel"):
        (photos / name).rename(photos / "train" / name)
    picture(photos / "val" / "dog" / "0.jpg", 0, (80, 80))
    said = notes(["train", "--data", "photos", "--method", "sgd", *SHORT], capsys)
    assert "the validation images have none of 'cat', 'eel', of which the accuracy says nothing" in said


def test_from_elsewhere_the_run_s_own_folder_still_has_its_images_held_out(photos, capsys, monkeypatch):
    notes(["train", "--data", "photos", "--method", "sgd", *SHORT], capsys)
    (here,) = evaluate_run("runs/train", device="cpu").values()
    (photos.parent / "elsewhere").mkdir()
    monkeypatch.chdir(photos.parent / "elsewhere")
    for limit, images in ((None, 3), (2, 2)):
        (there,) = evaluate_run("../runs/train", str(photos), limit=limit, device="cpu").values()
        assert there.images == images
        assert limit or there == here


def test_resident_photos_are_trained_with_randaugment(photos, capsys):
    words = ["train", "--data", "photos", "--recipe", "imagenet", "--size", "32", "--method", "sgd", *SHORT]
    said = notes(words, capsys)
    assert "a batch of 256 is larger than the data of 30 images: it is 30 here" in said[1]
    assert run_recipe("runs/train").randaugment == (2, 15)


def test_a_survey_counts_what_is_trained_on_and_measures_the_shorter_side(photos):
    found = survey(photos)
    assert found.images == 30
    assert 70 <= found.side <= 90
    assert survey(photos, limit=10).images == 10
    assert auto_recipe(str(photos), limit=10).epochs == 300


def test_the_recipe_follows_the_last_of_several_flags():
    given = ["--data", "digits", "--data=photos", "--data", "fake:8,2,8"]
    assert _base_recipe("train", given) == auto_recipe("fake:8,2,8") != auto_recipe("digits")


def test_what_auto_chose_names_all_that_changes_the_images():
    plain = dataclasses.replace(demo(), crop_padding=0, flip=False, randaugment=None, resized_crop=None)
    assert about_auto(plain).endswith(", no augmentation")
    changed = dataclasses.replace(plain, color_jitter=0.4, erasing=0.5, mixup=0.2)
    assert about_auto(changed).endswith(", colour jitter, erasing, mixup")


@pytest.mark.parametrize(
    ("images", "side", "chosen"),
    [
        (180, 300, {"batch_size": 16, "epochs": 219, "size": 128, "crop_padding": 0, "resized_crop": (0.25, 1.0)}),
        (180, 100, {"batch_size": 16, "epochs": 219, "size": 96, "crop_padding": 0, "resized_crop": (0.25, 1.0)}),
        (9_469, 160, {"size": 160, "crop_padding": 0, "resized_crop": (0.25, 1.0)}),
        (50_000, 500, {"size": 224, "crop_padding": 0, "resized_crop": (0.25, 1.0)}),
        (50_000, 32, {"size": 32}),  # CIFAR's recipe
        (500_000, 48, {"size": 48, "crop_padding": 6, "weight_decay": 4e-5}),  # as ImageNet's
        (5, 20, {"batch_size": 8, "epochs": 300, "size": 20, "crop_padding": 2}),
    ],
)
def test_auto_follows_the_number_and_the_size_of_the_images(images, side, chosen):
    assert recipe_for(Survey(images=images, side=side)) == dataclasses.replace(small(), **chosen)


def test_auto_is_a_named_recipe_where_one_fits():
    assert recipe_for(Survey(images=1_281_167, side=375)) == imagenet()
    assert (auto_recipe("digits"), auto_recipe("cifar100:x")) == (demo(), small())
    assert auto_recipe("cifar100:x", searching=True) == search()
    few = recipe_for(Survey(images=180, side=300), searching=True)
    assert few == dataclasses.replace(
        search(), batch_size=16, epochs=240, size=128, crop_padding=0, resized_crop=(0.25, 1.0)
    )


@pytest.mark.parametrize(
    "one_at_a_time", [{"images": 1}, {"batch_size": 1}, {"accumulate": 16}, {"images": 1, "compile": True}]
)
def test_a_batch_norm_left_with_one_value_is_said_in_a_sentence(one_at_a_time, tmp_path):
    with pytest.raises(ValueError, match="a batch norm is left with a single value"):
        train_run(small_job(**one_at_a_time), tmp_path / "run", device="cpu", quiet=True)


def test_other_data_are_read_at_the_size_of_the_run(photos, tmp_path):
    """The recipe may name none, and large photos would be read at 224 pixels."""
    train_run(small_job(images=32), tmp_path / "run", device="cpu", quiet=True)
    for number, name in enumerate(("cat", "dog", "eel")):  # the run's classes are numbers
        (photos / name).rename(photos / str(number))
    assert run_recipe(tmp_path / "run").size is None
    assert run_data(tmp_path / "run", str(photos)).size == 16


def test_a_run_in_a_folder_with_a_suffix_keeps_its_epochs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train_run(small_job(), "a.safetensors", device="cpu", quiet=True)
    notes(["train", "--resume", "--out", "a.safetensors", "--device", "cpu"], capsys)
    assert run_recipe("a.safetensors").epochs == 1


def test_fewer_images_than_parts_of_a_batch_are_said_to_be_too_few(tmp_path):
    with pytest.raises(ValueError, match="2 training images cannot make 4 parts of a batch: lower --accumulate"):
        train_run(small_job(images=2, accumulate=4), tmp_path / "run", device="cpu", quiet=True)
    with pytest.raises(ValueError, match="1 training image cannot make 2 parts of a batch: start fewer processes"):
        with_batch_for(demo(), 1, 2)


@pytest.mark.parametrize(("parts", "fits"), [(1, 20), (8, 16)])
def test_a_batch_larger_than_the_data_shrinks(parts, fits, tmp_path, capsys):
    job = small_job(images=20, batch_size=64, accumulate=parts)
    train_run(job, tmp_path / "run", device="cpu")
    assert run_recipe(tmp_path / "run").batch_size == fits
    assert f"a batch of 64 is larger than the data of 20 images: it is {fits} here" in capsys.readouterr().out
    train_run(job, tmp_path / "run", resume=True, epochs=2, device="cpu", quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("method", ["sgd", "search"])
def test_the_best_weights_are_kept_beside_the_last(method, tmp_path):
    job = dataclasses.replace(small_job(epochs=4, lr=0.5), method=method)
    summary = train_run(job, tmp_path / "run", device="cpu", quiet=True)
    best, last = (evaluate_run(tmp_path / "run", device="cpu", best=which)[16].accuracy for which in (True, False))
    assert best == pytest.approx(summary["best_val_accuracy"])
    assert last == pytest.approx(summary["val_accuracy"])
    same = (tmp_path / "run" / BEST).read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    assert same == (summary["best_epoch"] == 4)
    (tmp_path / "run" / BEST).unlink()
    with pytest.raises(ValueError, match=r"has no best\.safetensors, as an earlier version wrote it: leave --best out"):
        evaluate_run(tmp_path / "run", device="cpu", best=True)


def test_the_best_weights_are_evaluated_and_exported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = train_run(small_job(epochs=3), "run", device="cpu", quiet=True)
    with pytest.raises(SystemExit, match="0"):
        main(["eval", "run", "--best", "--json", "--device", "cpu"])
    assert json.loads(capsys.readouterr().out)[0]["accuracy"] == pytest.approx(summary["best_val_accuracy"])
    shutil.copy("run/best.safetensors", "before")
    shutil.copy("run/model.safetensors", "run/best.safetensors")
    with pytest.raises(SystemExit, match="0"):
        main(["export", "run", "--best", "--format", "safetensors", "--out", "last"])
    shutil.copy("before", "run/best.safetensors")
    with pytest.raises(SystemExit, match="0"):
        main(["export", "run", "--best", "--format", "safetensors", "--out", "best"])
    same = Path("best/model.safetensors").read_bytes() == Path("last/model.safetensors").read_bytes()
    assert same == (summary["best_epoch"] == 3)
    Path("run/int8").mkdir()
    Path("run/int8/program.safetensors").touch()
    assert "is INT8 of the last weights" in refused(["export", "run", "--best", "--format", "onnx-int8"], capsys)


@pytest.mark.filterwarnings("ignore:.*was written by an earlier version:UserWarning")
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_more_epochs_extend_a_run_and_the_cosine_follows(state, tmp_path, capsys):
    out = tmp_path / "run"
    if state == "finished":
        train_run(small_job(epochs=1), out, device="cpu", quiet=True)
    else:
        shutil.copytree(Path(__file__).parent / "train" / "old_runs" / "stopped_sgd", out)
    before = run_recipe(out).epochs
    (said,) = [
        note for note in notes(["train", "--resume", "--epochs", before + 2, "--out", out], capsys) if "cos" in note
    ]
    assert said.startswith(f"the run now ends after epoch {before + 2} instead of {before}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, before + 3))
    recipe, steps = run_recipe(out), lines[-1]["step"] // lines[-1]["epoch"]
    assert recipe.epochs == before + 2
    assert lines[-1]["lr"] == pytest.approx(lr_at(recipe, lines[-1]["step"] - 1, steps))
    assert json.loads((out / "summary.json").read_text())["epochs"] == before + 2


def test_another_number_of_processes_is_said_of_a_resumed_run(tmp_path, capsys):
    train_run(small_job(epochs=1), tmp_path / "run", device="cpu", quiet=True)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "processes": 2}))
    said = notes(["train", "--resume", "--epochs", "2", "--out", tmp_path / "run"], capsys)
    assert any("the run was begun in 2 processes and goes on in 1: batch norms" in note for note in said)


def test_other_flags_of_a_resumed_run_are_ignored(tmp_path, capsys):
    train_run(small_job(epochs=1), tmp_path / "run", device="cpu", quiet=True)
    notes(["train", "--resume", "--epochs", "2", "--lr", "7", "--out", tmp_path / "run"], capsys)
    assert run_recipe(tmp_path / "run") == small_job(epochs=2).recipe


def test_scales_that_are_frozen_within_the_warm_up_are_said_to_move_little(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--scales", "learn", "--data", "fake:64,4,16", "--batch-size", "32", "--epochs", "2"]
    said = notes([*words, "--warmup-epochs", "1", "--freeze-at", "0.5", "--lr", "1e-6"], capsys)
    assert any("are frozen after epoch 1, within the warm-up of 1, and will hardly move" in note for note in said)
    assert any("nothing was searched: a larger --freeze-at or --scale-lr lets them move" in note for note in said)
    said = notes([*words, "--warmup-epochs", "0", "--freeze-at", "1", "--lr", "1e-6", "--out", "never"], capsys)
    assert any("nothing was searched: a larger --scale-lr lets them move" in note for note in said)
    said = notes([*words, "--warmup-epochs", "0", "--freeze-at", "0.5", "--out", "other"], capsys)
    assert not any("will hardly move" in note for note in said)


def test_scales_that_start_at_0_and_hardly_move_are_noted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--scales", "learn", "--data", "fake:64,4,16", "--batch-size", "32", "--branches", "acnet"]
    said = notes([*words, "--start", "0", "--lr", "1e-6", "--warmup-epochs", "0", "--epochs", "2"], capsys)
    assert any("the scales are 0.0% from where they started" in note for note in said)


def test_so_are_those_of_a_resumed_run_that_is_now_shorter(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--scales", "learn", "--data", "fake:64,4,16", "--batch-size", "32"]
    interrupt_in("_finish_epoch")
    with pytest.raises(SystemExit):
        main([*words, "--epochs", "40", "--warmup-epochs", "2", "--out", "run"])
    assert "will hardly move" not in capsys.readouterr().out
    said = notes(["train", "--resume", "--epochs", "5", "--out", "run"], capsys)
    assert any("are frozen after epoch 1.5, within the warm-up of 2, and will hardly move" in note for note in said)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("my_scales", "could not be loaded: give a name that ends in .safetensors"),
        ("file/x.safetensors", "'file' is a file: give --scales-out a place in a folder"),
        ("there.safetensors", "there is a file 'there.safetensors' already"),
    ],
)
def test_a_place_for_scales_is_refused_before_the_search(place, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("there.safetensors").write_text("")
    with pytest.raises(ValueError, match=words):
        _check_place(Path(place), resume=False)


def test_a_search_that_is_stopped_says_where_its_scales_go(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    interrupt_in("_finish_epoch")
    with pytest.raises(SystemExit):
        main(["search", "--data", "fake:64,4,16", "--batch-size", "32", "--epochs", "3", "--out", "b0.safetensors"])
    assert "--resume --out b0 --scales-out b0.safetensors goes on" in " ".join(capsys.readouterr().err.split())
    notes(["search", "--resume", "--out", "b0", "--scales-out", "b0.safetensors"], capsys)
    with pytest.raises(FileNotFoundError, match=r"'b0' is a folder: give the file in it, 'b0/scales\.safetensors'"):
        Scales.load("b0")
    assert Scales.load("b0.safetensors") == Scales.load("b0/scales.safetensors")


def test_a_search_that_found_nothing_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["search", "--data", "fake:64,4,16", "--batch-size", "32", "--lr", "1e-6", *SHORT]
    said = notes(words, capsys)
    moved = [note for note in said if "from where they started, so nothing was searched" in note]
    assert len(moved) == 1
    out = Path("runs/search")
    assert about_search(out) == moved[0]
    scales = Scales.load(out / "scales.safetensors")
    spread = {
        name: {branch: scale + 0.02 * scale * (-1.0) ** torch.arange(len(scale)) for branch, scale in own.items()}
        for name, own in scales.items()
    }  # channel by channel; their mean has not moved
    (out / "scales.safetensors").unlink()
    Scales(spread).save(out / "scales.safetensors")
    assert about_search(out) is None


def test_an_accuracy_of_always_naming_one_class_is_said_to_be_that(tmp_path):
    out = write_run(tmp_path / "run")
    config = {
        "model": "repopt_vgg_nano",
        "options": {},
        "classes": ["heads", "tails"],
        "mean": [0],
        "std": [1],
        "size": 8,
    }
    (out / "config.json").write_text(json.dumps(config))
    even = about_accuracy(out, {"val_accuracy": 37.5, "guessing": 25.0})
    assert even == (
        "an accuracy of 37.50 is hardly better than always naming the most common class (25.00): train for longer or "
        "at another learning rate, on data that the model can learn"
    )
    assert about_accuracy(out, {"val_accuracy": 37.6, "guessing": 25.0}) is None
    assert "most common class (90.00)" in about_accuracy(out, {"val_accuracy": 91.0, "guessing": 90.0})
    assert about_accuracy(out, {"val_accuracy": 93.0, "guessing": 90.0}) is None
    assert "most common class (50.00)" in about_accuracy(out, {"val_accuracy": 59.0})  # of an older run


def test_data_of_unequal_classes_is_guessed_by_its_most_common_one():
    assert accuracy_of_guessing(torch.tensor([0, 1, 1, 1])) == 75.0


def test_trainings_of_unequal_length_are_not_compared_in_silence(tmp_path, capsys):
    runs = [write_run(tmp_path / "a", "sgd"), write_run(tmp_path / "b", epochs=30), write_run(tmp_path / "s", "search")]
    page = tmp_path / "page.html"
    said = notes(["report", *runs, "--out", page], capsys)
    assert [note for note in said if "trained for unequal numbers of epochs (15, 30)" in note]
    assert [note for note in said if "one seed of each method" in note]
    assert "trained for unequal numbers of epochs (15, 30)" in page.read_text()
    assert notes(["report", runs[0], runs[2], "--out", page], capsys) == []
    assert "unequal" not in page.read_text()
