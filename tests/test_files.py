"""Files are written whole or not at all, by many at once, and read as what they should hold."""

import csv
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import repopt
from repopt.files import UNFINISHED, append_csv, placing_folder, read_as, read_lines_as, replacing, write_sealed


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    size: tuple[int, int] = (1, 1)
    loss: float | None = None


def test_a_file_is_replaced_in_one_move_or_not_at_all(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(text, fails):
        with replacing(path) as unfinished:
            unfinished.write_text(text)
            assert path.read_text() == "old"
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("half", True)
    assert path.read_text() == "old"
    write("new", False)
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path):
    """As root, a report written to /dev/null would take its place."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for path in before:
        with pytest.raises(ValueError, match="is not an ordinary file"), replacing(path):
            pass
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path):
    path = tmp_path / "missing" / "file.txt"
    with pytest.raises(FileNotFoundError) as raised, replacing(path):
        pass
    assert raised.value.filename == str(path)


def test_a_folder_is_placed_in_one_move_or_not_at_all(tmp_path):
    def write(fails):
        with placing_folder(tmp_path / "folder") as unfinished:
            (unfinished / "a").touch()
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(True)
    assert list(tmp_path.iterdir()) == []
    write(False)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["folder", "folder/a"]


PLACES = pytest.mark.parametrize("place", [replacing, placing_folder])


@PLACES
def test_a_link_at_the_name_of_what_is_unfinished_is_not_followed(place, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    target = tmp_path / "mine" / "file" if place is replacing else tmp_path / "mine"
    (tmp_path / f"{UNFINISHED}out").symlink_to(target)
    with place(tmp_path / "out") as unfinished:
        (unfinished if place is replacing else unfinished / "file").write_text("new")
    assert (tmp_path / "mine" / "file").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "out"}


@PLACES
def test_what_a_killed_process_left_is_removed_by_the_next(place, tmp_path):
    (tmp_path / f"{UNFINISHED}out").mkdir()
    (tmp_path / f"{UNFINISHED}out" / "half").touch()
    with place(tmp_path / "out") as unfinished:
        (unfinished if place is replacing else unfinished / "file").write_text("new")
    assert {path.name for path in tmp_path.rglob("*")} <= {"out", "file"}


def test_tensors_and_scales_obey_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_sealed(tmp_path / "a.safetensors", {"a": torch.arange(3)}, {"note": "b"})
        repopt.Scales({"conv": {"conv3x3": 1.0}}).save(tmp_path / "b.safetensors")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    assert load_file(tmp_path / "a.safetensors")["a"].tolist() == [0, 1, 2]


def test_one_tensor_of_two_names_is_kept_under_both(tmp_path):
    """A module that a network reaches by two names has two in its state."""
    shared = torch.nn.Linear(2, 2)
    net = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    write_sealed(tmp_path / "tied.safetensors", net.state_dict())
    found = load_file(tmp_path / "tied.safetensors")
    assert found.keys() == net.state_dict().keys()
    assert torch.equal(found["0.weight"], found["2.weight"])


def test_a_folder_takes_its_name_only_once_it_is_on_the_disk(tmp_path, monkeypatch):
    flushed, flush = [], os.fsync

    def note(handle):
        flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        flush(handle)

    monkeypatch.setattr(os, "fsync", note)
    with placing_folder(tmp_path / "folder") as unfinished:
        (unfinished / "a").touch()
    assert flushed == ["a", unfinished.name, tmp_path.name]


def test_scales_that_cannot_be_written_whole_leave_the_old_ones(tmp_path, monkeypatch):
    path = tmp_path / "scales.safetensors"
    repopt.Scales({"conv": {"conv3x3": 1.0}}).save(path)

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*scales\.safetensors'"):
        repopt.Scales({"conv": {"conv3x3": 2.0}}).save(path)
    assert repopt.Scales.load(path)["conv"]["conv3x3"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_rows_are_appended_under_one_header(tmp_path):
    path = tmp_path / "results" / "step.csv"
    append_csv(path, [{"ms": 1, "seed": 0}])
    append_csv(path, [{"ms": 2, "seed": 0}])
    with path.open() as file:
        assert list(csv.DictReader(file)) == [{"ms": "1", "seed": "0"}, {"ms": "2", "seed": "0"}]


def test_those_who_append_at_once_take_turns(tmp_path):
    """Threads, whose locks exclude each other just as those of processes do: each opens the file on its own."""
    path = tmp_path / "a.csv"
    wanted = [{"number": number, "square": number**2} for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: append_csv(path, [row]), wanted))
    header, *rows = path.read_text().splitlines()
    assert header == "number,square"
    assert sorted(rows) == sorted(f"{row['number']},{row['square']}" for row in wanted)


def test_other_columns_do_not_go_into_the_same_file(tmp_path):
    append_csv(tmp_path / "a.csv", [{"ms": 1}])
    with pytest.raises(ValueError, match=r"a\.csv' has different columns"):
        append_csv(tmp_path / "a.csv", [{"images": 1}])


def test_a_file_that_lacks_a_column_gets_it_and_keeps_its_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('seed,ms\n0,"1,5"\n')
    append_csv(path, [{"seed": 1, "loss": 0.5, "ms": 2}])
    assert path.read_text() == 'seed,loss,ms\n0,,"1,5"\n1,0.5,2\n'
    with pytest.raises(ValueError, match=r"a\.csv' has different columns"):
        append_csv(path, [{"loss": 1, "seed": 0, "ms": 1, "more": 1}])  # in another order
    assert path.read_text() == 'seed,loss,ms\n0,,"1,5"\n1,0.5,2\n'


def test_a_file_that_was_left_empty_gets_its_header(tmp_path):
    (tmp_path / "a.csv").touch()
    append_csv(tmp_path / "a.csv", [{"ms": 1}])
    assert (tmp_path / "a.csv").read_text() == "ms\n1\n"


def test_a_file_is_read_as_a_type_and_more_keys_are_left_out(tmp_path):
    (tmp_path / "a.json").write_text('{"name": "a", "size": [2, 3], "loss": NaN, "more": 1}')
    read = read_as(tmp_path / "a.json", Shape)
    assert (read.name, read.size) == ("a", (2, 3))
    assert read.loss != read.loss


def test_a_file_of_another_type_is_a_sentence_with_its_place(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"name": "a"}\n\n{"name": 3}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl' is corrupt: line 3: Expected `str`, got `int`.*; mend it"):
        read_lines_as(path, Shape)


def test_lines_end_where_a_process_was_killed(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_lines_as(path, Shape) == []
    path.write_text('{"name": "a"}\n{"name": "b"}\n{"na')
    assert [shape.name for shape in read_lines_as(path, Shape)] == ["a", "b"]
