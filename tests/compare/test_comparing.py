"""`repopt compare` from end to end: table, page, figures; and once more, after an interruption."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import other_nets
import repopt
from made_up import measured_way as way
from repopt.cli import main
from repopt.compare.comparing import measured, run_folder
from repopt.compare.overview import command_of, notes_of, table_of
from repopt.compare.study import Study
from repopt.compare.ways import chosen_ways
from repopt.data import load_data
from repopt.train.recipe import demo

OTHER = "other_nets:small"  # four convolutions: an ONNX file of them is written in a second
WORDS = f"compare --model {OTHER} --data digits --limit 96 --methods sgd repopt --epochs 1 --device cpu".split()
WORDS += ["--out", "compared"]


def run(*words):
    with pytest.raises(SystemExit) as done:
        main([*map(str, words)])
    assert done.value.code == 0


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods, each at three rates or more, with two seeds."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(*WORDS, "--seeds", 2, "--quiet")
    return folder / "compared"


@pytest.fixture
def again(compared, tmp_path, monkeypatch):
    shutil.copytree(compared, tmp_path / "compared")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "compared"


def figures(folder):
    found = json.loads((folder / "compare.json").read_text())
    return {row["name"]: row for row in found["methods"]}, found


def test_each_way_has_its_seeds_at_the_better_rate(compared):
    rows, found = figures(compared)
    assert set(found["environment"]) == {"hardware", "threads", "python", "torch", "date"}
    assert list(rows) == ["sgd", "repopt"]
    for name, row in rows.items():
        assert set(row["rates"]) >= {"0.03", "0.1", "0.3"}  # and others where the lowest or the highest is the best
        reached = [accuracy for accuracy in row["rates"].values() if accuracy is not None]
        assert row["rates"][str(row["lr"])] == max(reached) == row["accuracies"][0]
        assert len(row["accuracies"]) == len(row["int8"]) == 2
        assert row["inference"] > 0 < row["images_per_second"]
        trained = sorted(path.name for path in compared.iterdir() if path.name.startswith(f"{name}-"))
        assert len(trained) == len(row["rates"]) + 1
    assert rows["repopt"]["int8"][1] == _int8(compared, rows["repopt"]["lr"], 1)


def _int8(folder, rate, seed):
    record = json.loads((folder / f"repopt-lr{rate:g}-seed{seed}" / "int8" / "quantized.json").read_text())
    return record["int8_accuracy"]


@pytest.mark.no_cover  # the time goes into torch's compiler
def test_the_trainings_of_a_way_share_what_is_compiled(tmp_path, monkeypatch):
    graphs = []
    monkeypatch.setattr("torch._inductor.compile", lambda graph, *_, **__: graphs.append(graph) or graph.forward)
    recipe = dataclasses.replace(demo(), epochs=1, batch_size=16, warmup_epochs=0, compile=True)
    ways = chosen_ways(OTHER, ("sgd", "repopt"))
    study = Study(model=OTHER, data="fake:32,4,16", ways=ways, recipe=recipe, rates=(0.1, 0.3), seeds=2)
    measured(study, load_data(study.data), tmp_path, int8=None, device=torch.device("cpu"), say=print)
    assert len(graphs) == len(ways)


def small_study(**others):
    recipe = dataclasses.replace(demo(), epochs=6, batch_size=16, warmup_epochs=0, eval_every=6)
    ways = chosen_ways(OTHER, ("sgd",))
    return Study(
        **{"model": OTHER, "data": "digits", "ways": ways, "recipe": recipe, "seeds": 1, "limit": 400, **others}
    )


def compared_by(study, folder, int8=None, say=print):
    return measured(
        study, load_data(study.data, limit=study.limit), folder, int8=int8, device=torch.device("cpu"), say=say
    )


def test_where_the_highest_rate_is_the_best_higher_ones_follow(tmp_path):
    study = small_study(rates=(1e-4, 0.03), further=(1e-5, 0.1))
    (found,) = compared_by(study, tmp_path)
    assert list(found.rates) == [1e-4, 0.03, 0.1]
    assert found.rates[1e-4] < found.rates[0.03]
    assert found.lr == max(found.rates, key=found.rates.get)


def test_what_resumes_a_training_is_kept_for_the_chosen_rate_alone(tmp_path):
    (found,) = compared_by(small_study(rates=(1e-4, 0.03)), tmp_path)
    kept = {path.parent for path in tmp_path.glob("*/checkpoint*")}
    assert kept == {run_folder(tmp_path, "sgd", found.lr, 0)}


def test_int8_takes_the_data_that_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("repopt.quantize.quantizing.run_data", None)  # would load them again
    (found,) = compared_by(small_study(rates=(0.03,)), tmp_path, int8="onnxruntime")
    assert len(found.int8) == 1


def test_a_network_that_cannot_be_quantized_after_all_costs_the_column_not_the_comparison(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("no such operator\nand a long trace")

    said = []
    monkeypatch.setattr("repopt.quantize.quantizing.calibrate_to", refuse)
    (found,) = compared_by(small_study(rates=(0.03,)), tmp_path, int8="onnxruntime", say=said.append)
    assert found.accuracies
    assert found.int8 == ()
    assert said[-1] == "sgd-lr0.03-seed0: INT8 is missing, since no such operator"


@pytest.mark.parametrize(("method", "named"), [("sgd", False), ("repopt", True)])
def test_the_command_names_branches_for_methods_that_plan_some(method, named):
    study = small_study(rates=(0.1,), ways=chosen_ways(OTHER, (method,)), model=OTHER)
    command = command_of(study, "auto", [], [way(method, 80.0)], branches="acnet")
    assert ("--branches acnet" in command) is named


def test_the_page_needs_nothing_else(compared):
    page = (compared / "compare.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "goes on with the best one" in page
    assert figures(compared)[1]["command"] in page.replace("&#39;", "'")


def test_what_was_interrupted_goes_on_and_what_is_finished_stays(again, capsys):
    rows, before = figures(again)
    interrupted = run_folder(again, "repopt", rows["repopt"]["lr"], seed=0)
    for name in ("summary.json", "model.safetensors", "config.json"):
        (interrupted / name).unlink()
    shutil.rmtree(interrupted / "int8", ignore_errors=True)
    kept = {path: path.stat().st_mtime_ns for path in again.glob("*/model.safetensors")}
    (again / "compare.json").unlink()
    run(*WORDS, "--seeds", 2)
    said = capsys.readouterr().out
    _, after = figures(again)
    assert [line for line in said.splitlines() if " seed 0: " in line or " seed 1: " in line] == [
        line for line in said.splitlines() if line.startswith(f"repopt, lr {rows['repopt']['lr']:g}, seed 0: ")
    ]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [row["accuracies"] for row in after["methods"]] == [row["accuracies"] for row in before["methods"]]
    assert max(map(len, said.partition("To train")[0].partition(" method ")[2].splitlines())) <= 80


@pytest.mark.parametrize(("words", "named"), [(["--seeds", "3"], "(seeds)"), (["--seeds", "2", "--lr", "0.2"], "(r")])
def test_another_comparison_is_not_mixed_with_it(again, capsys, words, named):
    with pytest.raises(SystemExit, match="2"):
        main([*WORDS, *words])
    assert named in capsys.readouterr().err


def test_the_command_at_the_end_trains_the_best(again):
    command = figures(again)[1]["command"].split()
    assert command[:2] == ["repopt", "train"]
    run(*command[1:-1], "full", "--quiet")
    recipe = json.loads((again.parent / "full" / "recipe.json").read_text())
    rows, found = figures(again)
    best = again / f"{found['best']}-lr{rows[found['best']]['lr']:g}-seed0"
    assert recipe == json.loads((best / "recipe.json").read_text())


def test_the_page_says_why_there_is_no_int8(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("onnxruntime", "torchao"):
        monkeypatch.setitem(sys.modules, name, None)
    run(*WORDS, "--seeds", 1, "--lr", 0.1)
    why = "INT8 and ONNX need onnxruntime, which is not installed: pip install -e '.[int8]' from a checkout"
    page = (tmp_path / "compared" / "compare.html").read_text().replace("&#39;", "'")
    assert f"note: INT8 is left out: {why}" in capsys.readouterr().out
    assert f"INT8 was not measured: {why}." in page


@pytest.mark.slow
def test_int8_by_onnx_runtime_needs_no_torchao(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchao", None)
    run(*WORDS, "--seeds", 1, "--lr", 0.1, "--quiet")
    assert all(row["int8"] for row in figures(tmp_path / "compared")[0].values())


def test_each_way_takes_its_best_of_the_rates_that_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        f"compare --model {OTHER} --data fake:64,4,16 --methods sgd --seeds 1 --epochs 1 --device cpu --out compared"
    )
    run(*words.split(), "--lr", 0.2, 0.1, 0.2, "--quiet")
    (way,) = figures(tmp_path / "compared")[0].values()
    assert list(way["rates"]) == ["0.1", "0.2"]
    assert way["lr"] in (0.1, 0.2)


def test_other_scales_in_the_same_file_are_another_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = (
        f"compare --model {OTHER} --data fake:64,4,16 --methods repopt --scales mine.safetensors --seeds 1 --epochs 1"
    )
    words += " --lr 0.01234561 0.01234564 --device cpu --out compared"
    plan = repopt.plan(other_nets.small(), "repvgg")
    repopt.Scales.ones(plan).save("mine.safetensors")
    run(*words.split())
    assert [path.name for path in (tmp_path / "compared").glob("repopt-*")] == ["repopt-lr0.0123456-seed0"]  # one rate
    run(*words.split())
    Path("mine.safetensors").unlink()
    repopt.Scales.depth_init(plan).save("mine.safetensors")
    with pytest.raises(SystemExit):
        main(words.split())
    assert "was started with other settings (scales file)" in capsys.readouterr().err.replace("\n", " ")


def test_other_code_of_the_same_model_is_another_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "import other_nets\ndef net(num_classes): return other_nets.small(num_classes, width={width})\n"
    Path("edited_net.py").write_text(code.format(width=4))
    words = "compare --model edited_net:net --data fake:64,4,16 --methods sgd --seeds 1 --epochs 1 --lr 0.1"
    words += " --device cpu --quiet --out compared"
    run(*words.split())
    run(*words.split())
    Path("edited_net.py").write_text(code.format(width=8))
    with pytest.raises(SystemExit):
        main(words.split())
    assert "was started with other settings (model code)" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
def test_a_network_of_ones_own_is_compared_with_real_branches(tmp_path, monkeypatch, capsys):
    """Depthwise, grouped and dilated convolutions; --minutes leaves one epoch and one seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(__file__).rpartition("/compare/")[0])
    sys.modules.pop("other_nets", None)
    words = "--data fake:64,4,16 --methods repopt branches qarepvgg --minutes 0.001 --out own --device cpu"
    run("compare", "--model", OTHER, *words.split())
    rows, found = figures(tmp_path / "own")
    assert list(rows) == ["repopt", "branches", "qarepvgg"]
    assert (found["study"]["recipe"]["epochs"], found["study"]["seeds"]) == (1, 1)
    assert "1 instead of 120 epochs and 1 instead of 3 seeds" in capsys.readouterr().out.replace("\n", " ")


def test_seeds_count_from_the_recipes_and_a_batch_larger_than_the_data_keeps_its_parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("base = 'demo'\nseed = 7\naccumulate = 4")
    words = "--data fake:34,4,16 --recipe mine.toml --methods sgd --seeds 2 --epochs 1 --lr 0.1 --device cpu --quiet"
    run("compare", "--model", OTHER, *words.split(), "--out", "x")
    recipes = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("x/*/recipe.json")}
    seeds_and_batches = {name: (each["seed"], each["batch_size"]) for name, each in recipes.items()}
    assert seeds_and_batches == {"sgd-lr0.1-seed7": (7, 32), "sgd-lr0.1-seed8": (8, 32)}
    assert len(figures(tmp_path / "x")[0]["sgd"]["accuracies"]) == 2


def test_a_training_that_diverges_is_said_and_not_tried_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = f"compare --model {OTHER} --data fake:64,4,16 --methods sgd --seeds 2 --epochs 2 --lr 1e30 --device cpu"
    for count in (1, 0):
        run(*words.split(), "--out", "x")
        said = capsys.readouterr().out
        assert said.count("not finite") == count
        assert "Every training diverged: give a lower --lr." in said


def test_a_column_without_figures_is_left_out():
    heads, rows = table_of([way("sgd", 80.0), way("dirac", diverged=1)])
    assert heads == ["method", "lr", "accuracy"]
    assert rows[1] == ["dirac", "0.1", "–"]


def test_all_that_diverged_has_no_command():
    ways = chosen_ways("mine:net", ())
    study = Study(model="mine:net", data="digits", ways=ways, recipe=demo(), rates=(0.1,), seeds=1)
    assert command_of(study, "auto", [], [way("sgd", diverged=1)]) == ""
    assert "--recipe mine.toml" in command_of(study, "mine.toml", [], [way("sgd", 80.0)])


def test_the_command_takes_back_a_recipes_freezing_where_no_scales_are_learned():
    """As the comparison itself does: `repopt train` refuses it there."""
    recipe = dataclasses.replace(demo(), freeze_at=0.4)
    ways = chosen_ways("repopt_vgg_nano", ("sgd", "repopt:learn"))
    study = Study(model="repopt_vgg_nano", data="digits", ways=ways, recipe=recipe, rates=(0.1,), seeds=1)
    assert "--recipe mine.toml --freeze-at None" in command_of(study, "mine.toml", [], [way("sgd", 80.0)])
    assert "--freeze-at" not in command_of(study, "mine.toml", [], [way("repopt:learn", 80.0)])


def test_the_command_names_the_init_of_plain_sgd():
    ways = chosen_ways("repopt_vgg_nano", ("sgd", "dirac"))
    study = Study(model="repopt_vgg_nano", data="digits", ways=ways, recipe=demo(), rates=(0.1,), seeds=1)
    assert "--method sgd --kernel paper --lr" in command_of(study, "auto", [], [way("sgd", 80.0)])
    assert "--kernel" not in command_of(study, "auto", [], [way("dirac", 80.0)])
    assert "Plain SGD starts from He's init" in " ".join(notes_of(study, [way("sgd", 80.0)]))
