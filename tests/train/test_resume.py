"""A run that is killed and resumed ends as one that never was: the same bits, each epoch recorded once."""

import dataclasses
import random
import shutil
import signal
import warnings

import pytest
import torch

import repopt
from data.pictures import class_folders
from made_up import small_job
from repopt.data.datasets import is_here
from repopt.data.folder import read_folder
from repopt.files import UNFINISHED
from repopt.train.checkpoint import CHECKPOINT, PREVIOUS, save_checkpoint
from repopt.train.job import Job
from repopt.train.recipe import demo
from repopt.train.records import read_info
from repopt.train.training import train_run
from train.program import TINY, Program, finished, metrics, run, weights

EVERYTHING = ["--ema", "0.9", "--mixup", "0.4", "--accumulate", "2", "--clip", "1", "--crop-padding", "2", "--flip"]
EVERYTHING += ["--dropout", "0.3"]
WAYS = {
    "search": ["search", *TINY],
    "repopt-sgd": ["train", *TINY, "--scales", "ones", "--label-smoothing", "0.1"],
    "repopt-adamw": ["train", *TINY, "--scales", "ones", "--optimizer", "AdamW", "--lr", "1e-3", *EVERYTHING],
    "learn": ["train", *TINY, "--scales", "learn", "--freeze-at", "0.5", "--scale-lr", "4", "--ema", "0.9"],
    "csla": ["train", *TINY, "--method", "csla", "--scales", "ones"],
}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    """The folder of an uninterrupted run of each way, trained when it is first asked for."""
    folder, found = tmp_path_factory.mktemp("wholes"), {}

    def whole(way):
        if way not in found:
            found[way] = finished(*WAYS[way], out=folder / way)
        return found[way]

    return whole


def killed_and_resumed(way, out, kills, seed):
    """Runs to the end through so many kills at random moments; how many of them fell into a checkpoint's writing."""
    draw = random.Random(seed)
    landed, torn, log = 0, 0, out.with_suffix(".log")
    while True:
        resume = (out / "recipe.json").exists()
        program = Program(*WAYS[way], "--out", out, *["--resume"] * resume, log=log, killed=landed < kills)
        if landed < kills:
            program.wait_for(lambda out=out: (out / "recipe.json").exists())
            program._process.join(draw.uniform(0.0, 0.35))
            landed += program.send(signal.SIGKILL)
            code = program.wait()
            torn += any(out.glob(f"{UNFINISHED}*"))
            assert code in (0, -signal.SIGKILL), program.said
            if code == 0:  # it was faster than we: once more from the start
                shutil.rmtree(out)
            continue
        assert program.wait() == 0, program.said
        return torn


@pytest.mark.parametrize(
    "way", [*(pytest.param(way, marks=pytest.mark.slow) for way in ("repopt-sgd", "search")), "repopt-adamw"]
)
def test_killed_twice_and_resumed_the_run_ends_with_the_same_bits(way, wholes, tmp_path):
    whole = wholes(way)
    killed_and_resumed(way, tmp_path / "killed", kills=2, seed=way)
    assert weights(tmp_path / "killed") == weights(whole)
    assert metrics(tmp_path / "killed") == metrics(whole)
    assert [record["epoch"] for record in metrics(whole)] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_eight_random_moments_and_resumed_each_time_the_run_ends_with_the_same_bits(
    way, seed, wholes, tmp_path
):
    whole = wholes(way)
    killed_and_resumed(way, tmp_path / "killed", kills=8, seed=seed)
    assert weights(tmp_path / "killed") == weights(whole)
    assert metrics(tmp_path / "killed") == metrics(whole)


@pytest.mark.parametrize(
    "way", ["repopt-adamw", *(pytest.param(way, marks=pytest.mark.slow) for way in ("search", "csla"))]
)
def test_killed_while_a_checkpoint_is_written_the_run_ends_with_the_same_bits(way, wholes, tmp_path):
    """The file is looked for, not waited for by the clock: the kill falls between its first byte and its name."""
    whole = wholes(way)
    out, unfinished = tmp_path / "killed", tmp_path / "killed" / f"{UNFINISHED}{CHECKPOINT}"
    program = Program(*WAYS[way], "--out", out, log=tmp_path / "log", killed=True)
    program.wait_for(unfinished.exists)
    program.send(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL, program.said
    unfinished.write_bytes(b"PK\x03\x04 torn")  # also where the kill came a moment late
    code, said = run(*WAYS[way], "--out", out, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert weights(out) == weights(whole)
    assert metrics(out) == metrics(whole)
    assert not list(out.glob(f"{UNFINISHED}*"))


def unfinish(folder):
    """Takes from a finished run what it writes after its first epoch."""
    for name in (CHECKPOINT, PREVIOUS, "summary.json", "model.safetensors"):
        (folder / name).unlink()


def test_a_run_killed_before_its_first_checkpoint_starts_again_and_records_each_epoch_once(wholes, tmp_path):
    way = WAYS["search"]
    whole = shutil.copytree(wholes("search"), tmp_path / "whole")
    scales = (whole / "scales.jsonl").read_text()
    before, recorded = weights(whole), metrics(whole)
    unfinish(whole)  # what was recorded is recorded again
    code, said = run(*way, "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert "has no checkpoint: the run starts over" in said
    assert (weights(whole), metrics(whole), (whole / "scales.jsonl").read_text()) == (before, recorded, scales)


def test_a_finished_run_is_resumed_to_what_it_is(wholes, tmp_path):
    whole = shutil.copytree(wholes("repopt-sgd"), tmp_path / "whole")
    before = weights(whole), metrics(whole)
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert (weights(whole), metrics(whole)) == before


def test_a_run_does_not_end_with_an_epoch_that_was_not_evaluated(tmp_path):
    job, out = small_job(epochs=2, eval_every=2), tmp_path / "run"
    train_run(job, out, device="cpu", quiet=True)
    before = weights(out), metrics(out), (out / "recipe.json").read_text()
    (out / PREVIOUS).replace(out / CHECKPOINT)  # as if it was killed in the second epoch
    with pytest.raises(ValueError, match="no val_accuracy for epoch 1, so the run cannot end there: give it more"):
        train_run(job, out, resume=True, epochs=1, device="cpu", quiet=True)
    train_run(job, out, resume=True, device="cpu", quiet=True)
    assert (weights(out), metrics(out), (out / "recipe.json").read_text()) == before


def test_fine_tuning_killed_before_its_first_checkpoint_starts_from_the_given_weights_again(tmp_path):
    torch.save(repopt.create_model("repopt_vgg_nano", num_classes=4).state_dict(), tmp_path / "given.pt")
    way = [*WAYS["repopt-sgd"], "--weights", tmp_path / "given.pt"]
    whole = finished(*way, out=tmp_path / "whole")
    before = weights(whole)
    unfinish(whole)
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert weights(whole) == before


def test_a_run_whose_data_have_changed_is_not_resumed(wholes, tmp_path):
    whole = shutil.copytree(wholes("repopt-sgd"), tmp_path / "whole")
    recorded = (whole / "run.json").read_text()
    (whole / "run.json").write_text(recorded.replace("fake:128,4,16", "fake:160,4,16"))
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 2
    assert "holds other images than when the run" in said


def test_a_run_that_stopped_at_a_broken_image_goes_on_without_it(tmp_path, monkeypatch):
    """Of files that are streamed; a link that leads nowhere since then is left out, too."""
    monkeypatch.setenv("REPOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(read_folder.__kwdefaults__, "resident", 0)
    root, out = class_folders(tmp_path / "pets", 8, 2, size=(16, 16)), tmp_path / "run"
    recipe = dataclasses.replace(demo(), epochs=1, batch_size=4, size=16, workers=0, warmup_epochs=0)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, out, device="cpu", quiet=True)
    (out / "recipe.json").write_text((out / "recipe.json").read_text().replace('"epochs": 1', '"epochs": 2'))
    picture = root / "train" / "cat" / "0.jpg"
    picture.write_bytes(bytes(picture.stat().st_size))
    with pytest.raises(ValueError, match=r"cat/0\.jpg' is not a readable image"):
        train_run(job, out, resume=True, device="cpu", quiet=True)
    (root / "train" / "dog" / "3.jpg").unlink()
    (root / "train" / "dog" / "3.jpg").symlink_to("nowhere")
    skipping = dataclasses.replace(job, broken="skip")
    with pytest.warns(UserWarning, match="2 of 20 images are broken and were left out"):
        summary = train_run(skipping, out, resume=True, device="cpu", quiet=True)
    assert summary["steps"] == 2 * (14 // 4)
    assert (read_info(out).broken, read_info(out).train_images) == ("skip", 14)
    (root / "train" / "dog" / "4.png").unlink()
    warnings.simplefilter("ignore")
    with pytest.raises(ValueError, match="holds other images than when the run"):
        train_run(skipping, out, resume=True, device="cpu", quiet=True)


def test_a_run_that_is_past_the_end_of_an_epoch_without_its_broken_images_goes_on_with_the_next(tmp_path):
    """Stopped at step 3 of 4; without the broken images an epoch has 2."""
    root, out = class_folders(tmp_path / "pets", 8, 2, size=(16, 16)), tmp_path / "run"
    recipe = dataclasses.replace(demo(), epochs=2, batch_size=4, size=16, workers=0, warmup_epochs=0)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, out, device="cpu", quiet=True)
    for name in ("summary.json", "model.safetensors", PREVIOUS):
        (out / name).unlink()
    state = torch.load(out / CHECKPOINT, weights_only=True)
    origin = state.pop("origin")
    state["ranks"][0]["totals"] = torch.tensor([3.0, 6.0, 3.0, 3.0], dtype=torch.float64)
    save_checkpoint(out, {**state, "position": {**state["position"], "epoch": 0, "step": 3}}, origin)
    (out / PREVIOUS).unlink()
    for name in (root / "train" / "cat").iterdir():
        name.write_bytes(bytes(name.stat().st_size))
    skipping, recorded = dataclasses.replace(job, broken="skip"), (out / "run.json").read_bytes()
    sealed = (out / CHECKPOINT).read_bytes()
    (out / CHECKPOINT).write_bytes(sealed[:-1])
    with pytest.warns(UserWarning, match="broken"), pytest.raises(ValueError, match="bring it back from a copy"):
        train_run(skipping, out, resume=True, device="cpu", quiet=True)
    assert (out / "run.json").read_bytes() == recorded
    (out / CHECKPOINT).write_bytes(sealed)
    with pytest.warns(UserWarning, match="8 of 20 images are broken and were left out"):
        summary = train_run(skipping, out, resume=True, device="cpu", quiet=True)
    assert [(record["epoch"], record["step"]) for record in metrics(out)] == [(1, 2), (2, 4)]
    assert (summary["steps"], read_info(out).train_images) == (4, 8)


def test_a_run_of_one_batch_goes_on_without_a_broken_image(tmp_path):
    root, out = class_folders(tmp_path / "pets", 8, 2, size=(16, 16)), tmp_path / "run"
    recipe = dataclasses.replace(demo(), epochs=1, batch_size=16, size=16, workers=0, warmup_epochs=0)
    job = Job(method="sgd", model="repopt_vgg_nano", data=f"folder:{root}", recipe=recipe)
    train_run(job, out, device="cpu", quiet=True)
    picture = root / "train" / "cat" / "0.jpg"
    picture.write_bytes(bytes(picture.stat().st_size))
    skipping = dataclasses.replace(job, broken="skip")
    for epochs in (2, 3):
        with pytest.warns(UserWarning, match="1 of 20 images"):
            summary = train_run(skipping, out, resume=True, epochs=epochs, device="cpu", quiet=True)
        assert summary["steps"] == epochs


def test_a_run_that_is_resumed_elsewhere_says_whose_data_is_missing(tmp_path, monkeypatch):
    class_folders(tmp_path / "pets", 8, 2, size=(16, 16))
    monkeypatch.chdir(tmp_path)
    recipe = dataclasses.replace(demo(), epochs=1, batch_size=16, size=16, workers=0, warmup_epochs=0)
    job = Job(method="sgd", model="repopt_vgg_nano", data="pets", recipe=recipe)
    train_run(job, "run", device="cpu", quiet=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert is_here("folder:~/pets")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(
        ValueError, match="the run's own data, 'pets', is not here: bring it back, or resume the run in the folder"
    ):
        train_run(job, tmp_path / "run", resume=True, epochs=2, device="cpu", quiet=True)


def test_a_finished_run_without_checkpoints_is_not_trained_again(wholes, tmp_path):
    whole = shutil.copytree(wholes("repopt-sgd"), tmp_path / "whole")
    for name in (CHECKPOINT, PREVIOUS):
        (whole / name).unlink(missing_ok=True)
    (whole / "model.safetensors").write_bytes(b"precious")
    before = {path.name: path.read_bytes() for path in whole.iterdir() if path.suffix in (".jsonl", ".json")}
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 0, said
    assert weights(whole) == b"precious"
    assert before == {name: (whole / name).read_bytes() for name in before}
    for more in (["--epochs", "4"], []):
        if not more:
            (whole / "summary.json").unlink()
        code, said = run("train", "--out", whole, "--resume", *more, log=tmp_path / "log")
        assert code == 2, said
        assert "is finished and has no checkpoint to go on from" in said
        assert weights(whole) == b"precious"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('"epochs": 3', '"epochs": 4'), "accuracy"),
        (('"workers": ', '"workers": 1'), "accuracy"),
        (('"lr": 0.1', '"lr": 0.2'), "was trained with lr 0.1, and now the run folder says 0.2"),
    ],
)
def test_epochs_and_workers_may_change_and_what_else_decides_on_the_weights_may_not(change, sentence, wholes, tmp_path):
    whole = shutil.copytree(wholes("repopt-sgd"), tmp_path / "whole")
    recipe = (whole / "recipe.json").read_text()
    assert change[0] in recipe
    (whole / "recipe.json").write_text(recipe.replace(*change))
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert (code, sentence in said) == (2 if "trained with" in sentence else 0, True), said


def test_the_checkpoint_of_another_run_is_refused(wholes, tmp_path):
    """Of a run with the same settings, so that it would load."""
    other = finished(*WAYS["repopt-sgd"], out=tmp_path / "other")
    whole = shutil.copytree(wholes("repopt-sgd"), tmp_path / "whole")
    shutil.copy(other / CHECKPOINT, whole / CHECKPOINT)
    code, said = run(*WAYS["repopt-sgd"], "--out", whole, "--resume", log=tmp_path / "log")
    assert code == 2
    assert "is another run's" in said
