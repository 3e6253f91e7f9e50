"""Runs of models that repopt does not know: trained by every method, evaluated, resumed, exported and quantized."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from repopt.cli import main
from repopt.quantize import QuantizeJob, quantize_run
from repopt.train.runs import evaluate_run, load_run

TINY = "--data fake:64,4,16 --recipe demo --epochs 1 --warmup-epochs 0 --batch-size 16 --device cpu"
SMALL = "--model other_nets:small --model-args width=4"
METHODS = {
    "sgd": "train --method sgd",
    "dirac": "train --method dirac",
    "repopt": "train --method repopt --scales depth",
    "learn": "train --method repopt --scales learn --freeze-at 0.5",
    "csla": "train --method csla --scales depth",
    "branches": "train --method branches",
    "qarepvgg": "train --method qarepvgg",
    "search": "search",
}


def repopt(words):
    with pytest.raises(SystemExit) as done:
        main(words.split())
    assert done.value.code == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run by each method."""
    folder = tmp_path_factory.mktemp("runs")
    for name, command in METHODS.items():
        repopt(f"{command} {SMALL} {TINY} --quiet --out {folder / name}")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_is_evaluated_as_it_was_trained(runs, method):
    summary = json.loads((runs / method / "summary.json").read_text())
    (score,) = evaluate_run(runs / method, device="cpu", trust=True).values()
    assert score.accuracy == pytest.approx(summary["val_accuracy"])
    assert type(load_run(runs / method, trust=True).model.model[0]) is torch.nn.Conv2d


def test_a_run_remembers_its_model(runs):
    run = json.loads((runs / "repopt" / "run.json").read_text())
    assert (run["model"], run["options"], run["branches"]) == ("other_nets:small", {"width": 4}, "repvgg")
    assert run["scales"] == "depth"
    assert json.loads((runs / "sgd" / "run.json").read_text())["branches"] is None


def test_repopt_trains_another_model_as_the_real_blocks_do(runs):
    plain, real = (load_file(runs / name / "model.safetensors") for name in ("repopt", "csla"))
    started = load_file(runs / "sgd" / "model.safetensors")
    for key in ("stem.0.weight", "model.0.weight", "grouped.0.weight", "dilated.0.weight"):
        torch.testing.assert_close(plain[key], real[key], rtol=1e-3, atol=1e-5)
        assert not torch.allclose(plain[key], started[key], rtol=1e-1)


@pytest.mark.parametrize("given", ["--trust", SMALL])
def test_a_run_is_resumed_on_trust_or_by_naming_the_same_model(runs, given, capsys):
    before = load_file(runs / "repopt" / "model.safetensors")
    repopt(f"train --resume {given} --device cpu --quiet --out {runs / 'repopt'}")
    after = load_file(runs / "repopt" / "model.safetensors")
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_branches_of_a_file_stay_with_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("'^stem.0$' = ['conv3x3', 'conv1x3', 'conv3x1']\n")
    repopt(f"train --scales ones {SMALL} --branches mine.toml {TINY} --out run")
    assert "declares no branches" not in capsys.readouterr().out
    Path("mine.toml").unlink()
    run = json.loads(Path("run", "run.json").read_text())
    assert run["branches"] == {"^stem.0$": ["conv3x3", "conv1x3", "conv3x1"]}
    assert {*load_file("run/scales.safetensors")} == {f"stem.0.conv{taps}" for taps in ("3x3", "1x3", "3x1")}
    repopt("train --resume --trust --device cpu --quiet --out run")


def test_without_branches_of_its_own_a_model_gets_repvggs_and_a_line_says_so(tmp_path, capsys):
    repopt(f"search {SMALL} {TINY} --out {tmp_path / 'run'}")
    assert "other_nets:small declares no branches and gets those of 'repvgg'" in capsys.readouterr().out


@pytest.mark.parametrize("method", sorted({*METHODS} - {"sgd"}))
def test_frozen_kernels_are_not_drawn_anew(method, tmp_path, capsys):
    """What a factory froze it had loaded; drawn anew it would stay at random."""
    with pytest.raises(SystemExit) as done:
        main(f"{METHODS[method]} --model other_nets:first_frozen {TINY} --out {tmp_path / 'run'}".split())
    assert done.value.code != 0
    assert "draws kernels anew, and the model comes with frozen ones ('stem.0'):" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_frozen_kernels_stay_where_no_method_draws_them(tmp_path):
    repopt(f"train --method sgd --model other_nets:first_frozen {TINY} --quiet --out {tmp_path / 'run'}")
    weights = f"--weights {tmp_path / 'run' / 'model.safetensors'} --scales depth"
    repopt(f"train {weights} --model other_nets:first_frozen {TINY} --quiet --out {tmp_path / 'tuned'}")
    before, after = (load_file(tmp_path / name / "model.safetensors")["stem.0.weight"] for name in ("run", "tuned"))
    assert torch.equal(before, after)


def test_a_note_says_which_of_a_factorys_own_weights_are_drawn_anew(tmp_path, capsys):
    for name, found in (("he_drawn", ["'dilated.0'"]), ("small", [])):
        repopt(f"train --scales depth --model other_nets:{name} {TINY} --out {tmp_path / name}")
        said = capsys.readouterr().out
        assert re.findall(r"comes with weights of its own \((.*)\), which the method repopt draws anew", said) == found


def test_a_network_with_a_child_called_module_is_searched_trained_and_evaluated(tmp_path):
    named = f"--model other_nets:behind_norm {TINY}"
    repopt(f"search {named} --out {tmp_path / 'search'}")
    repopt(f"train {named} --quiet --scales {tmp_path / 'search' / 'scales.safetensors'} --out {tmp_path / 'run'}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (score,) = evaluate_run(tmp_path / "run", device="cpu", trust=True).values()
    assert score.accuracy == pytest.approx(summary["val_accuracy"])


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_may_take_part_later_than_others(method, tmp_path):
    repopt(f"{METHODS[method]} --model other_nets:Late {TINY} --quiet --out {tmp_path / 'run'}")
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_model_of_timm_is_trained_and_evaluated_without_trust(tmp_path, capsys):
    repopt(f"train --method branches --model timm:resnet10t {TINY} --quiet --out {tmp_path / 'run'}")
    capsys.readouterr()
    repopt(f"eval {tmp_path / 'run'} --device cpu --json")
    (score,) = json.loads(capsys.readouterr().out)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert score["accuracy"] == pytest.approx(summary["val_accuracy"])


@pytest.mark.parametrize("method", ["sgd", "branches"])
def test_a_run_is_exported(runs, method, capsys):
    run = runs / method
    for form in ("onnx", "safetensors"):
        repopt(f"export {run} --format {form} --trust")
    said = capsys.readouterr().out
    assert said.count("top-1    100.00% the same") == 2
    assert (run / "export" / "model.safetensors").exists()


def test_a_run_is_quantized(runs):
    done = quantize_run(runs / "branches", QuantizeJob(), device=torch.device("cpu"), quiet=True, trust=True)
    assert done.file.exists()
    assert done.record["model"] == "other_nets:small"


def test_the_benchmarks_take_other_models(capsys):
    shared = f"{SMALL.replace('--model ', '--models ')} --branches acnet --device cpu --json"
    repopt(f"bench train {shared} --methods repopt branches sgd --size 16 --batch-size 4 --classes 4 --steps 1")
    costs = json.loads(capsys.readouterr().out)
    assert [cost["method"] for cost in costs] == ["repopt", "branches", "sgd"]
    assert costs[1]["parameters"] > costs[0]["parameters"] == costs[2]["parameters"]
    repopt(f"bench step {SMALL} --repeats 1 --device cpu --json")
    assert {cost["model"] for cost in json.loads(capsys.readouterr().out)} == {"other_nets:small"}


def test_the_list_has_the_sizes(capsys):
    repopt("list --json")
    sizes = json.loads(capsys.readouterr().out)
    assert sizes["repopt_vgg_b1"] == {
        "parameters": 51_841_832,
        "macs": pytest.approx(11.82e9, rel=1e-3),
        "scales": True,
    }
    assert sizes["repvgg_b1"] == {**sizes["repopt_vgg_b1"], "parameters": 57_415_016, "scales": False}
    repopt("list")
    assert set(sizes) <= set(capsys.readouterr().out.split())
