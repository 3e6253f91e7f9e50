"""A run folder that was read says what its files say, or which of them is corrupt and where."""

import json

import pytest

from repopt.train.records import read_run
from report.folders import write_run


def test_a_finished_run_says_what_its_summary_does(tmp_path):
    run = read_run(write_run(tmp_path / "a", "repopt", seed=2))
    said = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (run.finished, run.info.method, run.info.seed, run.epochs_done) == (True, "repopt", 2, 15)
    assert run.val_accuracy == said["val_accuracy"]
    assert run.seconds == pytest.approx(sum(said["seconds"].values()))
    assert run.info.hardware == "Intel Xeon, 2 cores"


def test_an_unfinished_run_says_what_its_last_epochs_do(tmp_path):
    run = read_run(write_run(tmp_path / "a", epochs=7, finished=False))
    assert (run.finished, run.epochs_done, run.images_per_second) == (False, 7, 900.0)
    assert run.val_accuracy == run.epochs[-1].val_accuracy
    assert run.seconds == pytest.approx(7 * 1.6)


def test_a_run_that_is_being_lengthened_is_not_finished(tmp_path):
    folder = write_run(tmp_path / "a")
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({**recipe, "epochs": 40}))
    run = read_run(folder)
    assert (run.finished, run.epochs_done) == (False, 15)


def test_a_run_before_its_first_epoch_is_a_run(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").unlink()
    run = read_run(folder)
    assert (run.epochs, run.epochs_done, run.val_accuracy, run.images_per_second, run.seconds) == ((), 0, None, None, 0)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_left_out(tmp_path, cut):
    folder = write_run(tmp_path / "a", "search", finished=False)
    for name in ("metrics.jsonl", "scales.jsonl"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-cut])
    run = read_run(folder)
    assert [epoch.epoch for epoch in run.epochs] == list(range(1, 15))
    assert list(run.scales) == list(range(15))


def test_of_an_epoch_run_again_the_later_line_counts(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 15, "train_loss": 0.5}\n\n')
    run = read_run(folder)
    assert len(run.epochs) == 15
    assert run.epochs[-1].train_loss == 0.5


def test_what_newer_versions_add_is_left_out(tmp_path):
    folder = write_run(tmp_path / "a", colour="red")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 16, "taste": [1]}\n')
    run = read_run(folder)
    assert run.epochs[-1].epoch == 16
    assert not hasattr(run.info, "colour")


@pytest.mark.parametrize("name", ["recipe.json", "run.json"])
def test_a_folder_that_is_no_run_names_the_missing_file(tmp_path, name):
    folder = write_run(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"'.*a' is not a run folder: it has no {name}"):
        read_run(folder)
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere': give one that a search or training wrote"):
        read_run(tmp_path / "nowhere")


def test_a_folder_of_runs_names_one_of_them(tmp_path):
    write_run(tmp_path / "a")
    with pytest.raises(ValueError, match=r"it has no run.json; '.*a' is one$"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("recipe.json", '{\n"lr": 0.1,\n}', r"recipe\.json' is corrupt: line 3 is not JSON"),
        ("recipe.json", "", r"recipe\.json' is corrupt: line 1 is not JSON"),
        ("metrics.jsonl", '{"epoch": 1}\n{"epo\n{"epoch": 3}\n', r"metrics\.jsonl' is corrupt: line 2 is not JSON"),
        ("metrics.jsonl", "[1]\n", r"metrics\.jsonl' is corrupt: line 1: Expected `object`, got `array`"),
        ("metrics.jsonl", '\n{"epoch": "x"}\n', r"line 2: Expected `int`, got `str` - at `\$\.epoch`"),
        (
            "metrics.jsonl",
            '{"epoch": 1, "train_loss": true}\n',
            r"line 1: Expected `float.*got `bool` - at `\$\.train_loss",
        ),
        ("scales.jsonl", '{"epoch": 1, "scales": 3}\n', r"line 1: Expected `object`, got `int` - at `\$\.scales`"),
        ("run.json", "{}", r"run\.json' is corrupt: Object missing required field `method`"),
        ("summary.json", "{}", r"summary\.json' is corrupt: Object missing required field `epochs`"),
    ],
)
def test_a_corrupt_file_is_named_with_its_place(tmp_path, name, text, sentence):
    folder = write_run(tmp_path / "a", "search")
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        read_run(folder)


@pytest.mark.parametrize("left", [None, b"", bytes(100), b'{"epoch": 1}\n'], ids=["gone", "empty", "zeros", "cut"])
def test_a_finished_run_has_a_record_of_every_epoch(left, tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    if left is not None:
        (folder / "metrics.jsonl").write_bytes(left)
    with pytest.raises(ValueError, match=r"metrics\.jsonl' has no record of epoch \d"):
        read_run(folder)
