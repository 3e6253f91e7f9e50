"""A run's folder is held by one process, and nothing in it is lost; what it trained knows its classes."""

import dataclasses
import json
import shutil

import pytest
from filelock import FileLock
from torch import nn

from made_up import small_job
from repopt.data import load_data
from repopt.files import UNFINISHED
from repopt.train.run_folder import RunFolder
from repopt.train.runs import Trained, check_data
from repopt.train.stopping import DivergedError
from repopt.train.training import train_run


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    folder.write("recipe.json", {"epochs": 3})
    folder.close()
    assert json.loads((folder.path / "recipe.json").read_text()) == {"epochs": 3}


def test_a_folder_is_held_until_it_is_closed(tmp_path):
    first = RunFolder(tmp_path)
    first.write("recipe.json", {})
    with pytest.raises(ValueError, match="another process is training in"):
        RunFolder(tmp_path, resume=True)
    first.close()
    RunFolder(tmp_path, resume=True).close()


def test_a_run_is_not_started_over_another_one(tmp_path):
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match=r"there is a run in .* already: give --resume"):
        RunFolder(tmp_path)


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"there is no run in .* to resume"):
        RunFolder(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: give --out a folder"):
        RunFolder(tmp_path / "file")


def test_what_is_of_no_run_is_not_overwritten(tmp_path):
    (tmp_path / "scales.safetensors").write_bytes(b"precious")
    with pytest.raises(ValueError, match=r"holds scales.safetensors, which belongs to no run"):
        RunFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scales.safetensors"]


def test_a_start_that_was_killed_half_way_can_be_made_again(tmp_path):
    """run.json is written first and recipe.json last."""
    for name in ("run.json", "scales.safetensors"):
        (tmp_path / name).touch()
    RunFolder(tmp_path).close()


def test_a_start_that_fails_removes_nothing_that_was_there(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    for name in ("tensorboard/events.mine", "run.json", "scales.safetensors"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="'nowhere' is not a source of data"):
        train_run(dataclasses.replace(small_job(), data="nowhere"), tmp_path, device="cpu", quiet=True)
    left = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert left == dict.fromkeys(("events.mine", "run.json", "scales.safetensors"), "mine")


def test_a_start_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(DivergedError):
        train_run(small_job(lr=1e30), tmp_path, device="cpu", quiet=True)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", ".lock"}


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "summary.json", "checkpoint.pt", "best.safetensors"]
)
def test_the_results_of_a_run_whose_recipe_is_lost_are_kept(name, tmp_path):
    for each in ("run.json", name):
        (tmp_path / each).write_text("precious")
    with pytest.raises(ValueError, match=f"holds {name}, which belongs to no run: give another --out"):
        RunFolder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", name}


def test_a_torn_last_line_is_left_out_and_later_epochs_are_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        folder.append("metrics.jsonl", {"epoch": epoch})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "train_l')
    assert [record["epoch"] for record in folder.lines("metrics.jsonl")] == [1, 2, 3]
    folder.forget_after(2)
    folder.append("metrics.jsonl", {"epoch": 3})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3}\n'
    folder.close()
    assert not (tmp_path / "scales.jsonl").exists()


def test_a_folder_that_was_made_for_nothing_goes_and_the_users_own_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine", "made"):
        RunFolder(tmp_path / name).close()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_parents_that_were_made_for_nothing_go_too_unless_they_have_been_used(tmp_path):
    RunFolder(tmp_path / "runs" / "a" / "b").close()
    assert list(tmp_path.iterdir()) == []
    folder = RunFolder(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "mine").touch()
    folder.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "mine"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "scales.jsonl", "tensorboard", "checkpoint.pt"])
@pytest.mark.parametrize("there", [(), ("run.json",), ("run.json", "recipe.json")], ids=["new", "killed", "started"])
def test_a_link_to_nothing_is_not_written_through(name, there, tmp_path):
    for other in there:
        (tmp_path / other).write_text("{}")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{name}' is a symbolic link to nothing"):
        RunFolder(tmp_path, resume="recipe.json" in there)
    assert (tmp_path / name).is_symlink()


def test_the_look_that_counts_is_the_one_under_the_lock(tmp_path, monkeypatch):
    """Another process starts a run between our first look and our lock, and is done before we have it."""
    acquire = FileLock.acquire

    def after_another_run(lock, *args, **kwargs):
        (tmp_path / "recipe.json").write_text("{}")
        return acquire(lock, *args, **kwargs)

    monkeypatch.setattr(FileLock, "acquire", after_another_run)
    with pytest.raises(ValueError, match=r"there is a run in .* already"):
        RunFolder(tmp_path)
    monkeypatch.undo()
    RunFolder(tmp_path, resume=True).close()  # the lock was given back


def test_a_folder_that_is_replaced_while_it_is_locked_is_not_written_to(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write("recipe.json", {})
    (tmp_path / "run").rename(tmp_path / "moved")
    other = RunFolder(tmp_path / "run")  # the name is free, and another run takes it
    other.write("recipe.json", {"epochs": 3})
    for write in (
        lambda: folder.write("recipe.json", {}),
        lambda: folder.append("metrics.jsonl", {}),
        lambda: folder.save({}),
    ):
        with pytest.raises(ValueError, match="was moved, removed or replaced"):
            write()
    folder.close()
    other.close()
    assert json.loads((tmp_path / "run" / "recipe.json").read_text()) == {"epochs": 3}


def test_a_folder_that_is_removed_is_not_made_again(tmp_path):
    folder = RunFolder(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ValueError, match="was moved, removed or replaced"):
        folder.append("metrics.jsonl", {})
    folder.close()
    assert not (tmp_path / "run").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        RunFolder(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


def test_what_a_killed_start_left_is_removed_by_the_next(tmp_path):
    for name in ("run.json", "scales.safetensors", "report.html"):
        (tmp_path / f"{UNFINISHED}{name}").write_text("half")
    RunFolder(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_record_that_is_broken_is_not_dropped_with_all_after_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    (tmp_path / "recipe.json").touch()
    folder = RunFolder(tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"metrics\.jsonl' is corrupt: line 2"):
        folder.forget_after(2)
    folder.close()
    assert "3" in (tmp_path / "metrics.jsonl").read_text()


def test_images_of_other_classes_are_not_scored():
    data = load_data("fake:64,4,16")
    trained = Trained(model=nn.Identity(), config={"mean": data.mean, "classes": data.classes})
    check_data(trained, data)
    other = dataclasses.replace(data, classes=data.classes[::-1])
    with pytest.raises(ValueError, match=f"has the class '{data.classes[-1]}' where the run has '{data.classes[0]}'"):
        check_data(trained, other)
