import json

import pytest
import torch

from data.pictures import class_folders
from repopt.bench.data_speed import measure_data
from repopt.cli import main
from repopt.data import folder
from repopt.train.recipe import Recipe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPOPT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", ["folder:", ""])
def test_a_folder_in_memory_is_decoded_and_batched(tmp_path, kind):
    source = f"{kind}{class_folders(tmp_path / 'pets', 6, 3)}"
    decoding, batches = measure_data(source, Recipe(batch_size=5, size=8), device=CPU, steps=3)
    assert (decoding.stage, decoding.images) == ("decoding", 18)
    assert (batches.stage, batches.images) == ("batches", 20)  # two epochs of two batches
    assert min(decoding.images_per_second, batches.images_per_second) > 0


def test_a_streamed_folder_is_decoded_by_its_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(folder.read_folder, "__kwdefaults__", {**folder.read_folder.__kwdefaults__, "resident": 0})
    source = f"folder:{class_folders(tmp_path / 'pets', 6, 3)}"
    (batches,) = measure_data(source, Recipe(batch_size=5, size=8, workers=0), device=CPU, steps=3)
    assert (batches.stage, batches.images) == ("batches", 15)


def test_no_steps_are_no_timing():
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        measure_data("digits", Recipe(), device=CPU, steps=0)


def test_the_command_times_a_model_beside_the_data(tmp_path, capsys):
    words = "bench data --data fake:20,4,32 --model repopt_vgg_nano --batch-size 10 --steps 1 --device cpu"
    with pytest.raises(SystemExit) as done:
        main([*words.split(), "--out", str(tmp_path / "data.csv")])
    assert done.value.code == 0
    assert "repopt_vgg_nano by repopt" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*words.split(), "--out", str(tmp_path / "data.csv"), "--json"])
    assert [row["stage"] for row in json.loads(capsys.readouterr().out)] == ["batches", "training"]
    assert len((tmp_path / "data.csv").read_text().splitlines()) == 5
