"""A run's folder is held by one process, and nothing in it is lost."""

import json

import pytest

from repopt.train.runs import RunFolder


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
