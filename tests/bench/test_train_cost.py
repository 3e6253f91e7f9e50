import json

import pytest
import torch

from repopt.bench.train_cost import measure_training
from repopt.cli import main
from repopt.train.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = Recipe(batch_size=8, flip=False)


def test_methods_are_compared_with_the_first():
    first, second = measure_training(
        "repopt_vgg_nano", ("repopt", "repvgg"), RECIPE, size=32, classes=4, steps=2, device=CPU
    )
    assert (first.method, first.ratio, second.method) == ("repopt", 1.0, "repvgg")
    assert second.ratio == pytest.approx(second.images_per_second / first.images_per_second)
    assert second.parameters > first.parameters
    assert first.peak_bytes is None


def test_no_steps_are_no_measurement():
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        next(measure_training("repopt_vgg_nano", ("sgd",), RECIPE, size=32, classes=4, steps=0, device=CPU))


def test_a_network_of_other_code_is_compared_with_its_real_branches(capsys):
    words = "bench train --models other_nets:small --batch-size 8 --size 32 --classes 4 --steps 1 --device cpu --json"
    with pytest.raises(SystemExit) as done:
        main(words.split())
    assert done.value.code == 0
    assert [cost["method"] for cost in json.loads(capsys.readouterr().out)] == ["repopt", "branches"]


def test_what_was_measured_is_not_lost_with_what_cannot_be(tmp_path, capsys):
    words = "bench train --batch-size 8 --size 32 --classes 4 --steps 1 --device cpu --methods sgd --models"
    for models, measured in (["repopt_vgg_nano", "repopt_vgg_nan"], 0), (["repopt_vgg_nano", "other_nets:smal"], 1):
        out = tmp_path / f"{measured}.csv"
        with pytest.raises(SystemExit) as done:
            main([*words.split(), *models, "--out", str(out)])
        assert done.value.code == 2
        assert f"no {'model' if measured == 0 else repr('smal')}" in " ".join(capsys.readouterr().err.split())
        assert out.exists() == bool(measured)


def test_the_command_prints_a_table_and_keeps_the_figures(tmp_path, capsys):
    words = "bench train --models repopt_vgg_nano --methods sgd repopt --batch-size 8 --size 32 --classes 4 --steps 1"
    with pytest.raises(SystemExit) as done:
        main([*words.split(), "--precision", "fp32", "--device", "cpu", "--out", str(tmp_path / "train.csv")])
    assert done.value.code == 0
    assert "repopt_vgg_nano: repopt" in capsys.readouterr().out
    rows = (tmp_path / "train.csv").read_text().splitlines()
    assert len(rows) == 3
    assert "hardware" in rows[0]
