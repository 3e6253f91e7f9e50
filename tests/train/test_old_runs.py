"""Run folders that an earlier version wrote still load, resume and report.

old_runs/ was written by commit 9ea4de0 on a CPU: two epochs of four steps with a model of 900 parameters. The stopped
runs ended by a signal after step 2 of epoch 2; the finished ones are the same trainings, uninterrupted. One was
quantized by the same code.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import repopt
from paper.searches import read_search
from repopt.plans.scales import Scales
from repopt.report import write_report
from repopt.train.job import Job
from repopt.train.recipe import Recipe
from repopt.train.records import read_run
from repopt.train.run_folder import RunFolder
from repopt.train.runs import evaluate_run, load_run, run_recipe
from repopt.train.training import train_run

OLD = Path(__file__).parent / "old_runs"


@pytest.mark.parametrize("name", ["finished_sgd", "finished_adamw", "search"])
def test_a_finished_run_loads_and_evaluates_to_what_it_recorded(name):
    trained, recorded = load_run(OLD / name), read_run(OLD / name)
    assert sum(weight.numel() for weight in trained.model.parameters()) == 896
    assert recorded.finished
    (score,) = evaluate_run(OLD / name, device="cpu").values()
    assert score.images == recorded.info.val_images
    assert score.loss == pytest.approx(recorded.epochs[-1].val_loss, rel=1e-3)


@pytest.mark.parametrize("name", ["finished_sgd", "stopped_sgd", "search"])
def test_a_run_keeps_the_augmentation_and_the_crop_that_it_was_started_with(name):
    """Those of before recipes had a field for them; a new run has the authors'."""
    old, new = run_recipe(OLD / name), Recipe()
    assert (old.randaugment_by, old.erasing_with, old.eval_share) == ("torchvision", "mean", None)
    assert (new.randaugment_by, new.erasing_with, new.eval_share) == ("authors", "noise", 1.0)


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_a_stopped_run_resumes_to_where_the_uninterrupted_one_ended(rule, tmp_path):
    """The checkpoint holds the optimizer's state and the fingerprint of its plan."""
    out = shutil.copytree(OLD / f"stopped_{rule}", tmp_path / "run")
    other = Job(method="sgd", model="repopt_vgg_b1", data="digits", recipe=run_recipe(out))  # the folder's job counts
    with pytest.warns(UserWarning, match="by an earlier version, without a checksum"):
        train_run(other, out, resume=True, device="cpu", quiet=True)
    assert [epoch.epoch for epoch in read_run(out).epochs] == [1, 2]
    ended, expected = (load_file(folder / "model.safetensors") for folder in (out, OLD / f"finished_{rule}"))
    torch.testing.assert_close(ended, expected, rtol=1e-3, atol=1e-4)  # of another processor, perhaps


def test_searched_scales_load_and_plan_a_model():
    scales = Scales.load(OLD / "search" / "scales.safetensors")
    plan = repopt.plan(load_run(OLD / "search").model, scales=scales)
    assert set(plan.operators) == set(scales)
    assert max(read_search(OLD / "search", "old").history) == 2


def test_what_was_quantized_is_read():
    (int8,) = read_run(OLD / "finished_sgd").int8
    assert (int8.method, int8.backend, int8.float_accuracy, int8.int8_accuracy) == ("ptq", "x86", 25.0, 25.0)


def test_a_run_goes_on_beside_what_another_program_left_unfinished(tmp_path):
    out = shutil.copytree(OLD / "stopped_sgd", tmp_path / "run")
    (out / ".unfinished.int8").mkdir()
    RunFolder(out, resume=True).close()
    assert (out / ".unfinished.int8").is_dir()


def test_all_of_them_make_a_report(tmp_path):
    pytest.importorskip("matplotlib")
    page = write_report(sorted(OLD.iterdir()), tmp_path / "report.html").read_text()
    assert "5 runs of repopt_vgg_nano" in page
    assert page.count("unfinished, 1 of 2 epochs") == 2
