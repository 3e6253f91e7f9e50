"""The loop does what its recipe says."""

import copy
import dataclasses
import gc
import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import prune

import repopt.train.loop
from made_up import small_job
from repopt.cli.around_a_run import conclude
from repopt.data import load_data
from repopt.report import write_report
from repopt.surgery.conversion import merge
from repopt.train.distributed import World
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.methods import METHODS
from repopt.train.objective import Objective
from repopt.train.recipe import demo, lr_at
from repopt.train.records import read_run
from repopt.train.run_folder import RunFolder
from repopt.train.runs import evaluate_run, load_run
from repopt.train.step import Totals, TrainStep, mixed_share, moving_average
from repopt.train.stopping import StopOnSignal, StoppedError
from repopt.train.training import build, train_run
from train.program import finished, metrics
from train.program import run as program

CPU = torch.device("cpu")
SMALL = {"depths": (2, 1, 1, 1)}  # one identity
BASE = dataclasses.replace(demo(), epochs=2, batch_size=32, warmup_epochs=0, eval_every=1, lr=0.05)


def started(method="repopt", *, data="fake:64,4,16", options=None, double=False, **fields):
    recipe = dataclasses.replace(BASE, **fields)
    data = load_data(data, limit=64)
    job = Job(
        method=method, model="repopt_vgg_nano", data=data.name, recipe=recipe, scales="ones", options=options or SMALL
    )
    subject = build(job, data, CPU)
    if double:
        subject.model.double()
    return Trainer(subject, data, recipe, None, device=CPU, quiet=True)


def trained(run, steps=2, dtype=torch.float32):
    """The run after some steps, and the losses of each."""
    losses = []
    for number, (x, y) in zip(range(steps), run.batches.pixels(0), strict=False):
        before = run.step.totals.values[0].item()
        run.train_on(x.to(dtype), y, 0, number)
        losses.append(run.step.totals.values[0].item() - before)
    return losses


def weights(run):
    return {name: param.detach().clone() for name, param in run.subject.model.named_parameters()}


def as_they_are(net, recipe):
    """The recipe's loss of images that are not normalized."""
    scaling = torch.ones(3, 1, 1), torch.zeros(3, 1, 1)
    return Objective(net, scaling, label_smoothing=recipe.label_smoothing, channels_last=False)


def normless():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4)).double()


@pytest.mark.parametrize("optimizer", ["SGD", "RAdam"])
def test_the_kernels_that_a_run_was_drawn_with_are_let_go(optimizer):
    assert started(optimizer=optimizer, weight_decay=0.0).subject.kernels is None


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_is_the_whole_batch_where_there_are_no_norms(parts):
    x = torch.randn(32, 3, 16, 16, dtype=torch.float64)
    y = torch.arange(32) % 4
    found = []
    for accumulate in (1, parts):
        net = normless()
        recipe = dataclasses.replace(BASE, accumulate=accumulate, label_smoothing=0.1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        step = TrainStep(as_they_are(net, recipe), optimizer, lambda: None, recipe, device=CPU, graph=False)
        for _ in range(5):
            step(x, y)
        found.append((net, step.totals.values))
    (whole, totals), (split, split_totals) = found
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-14)
    torch.testing.assert_close(split_totals, totals, rtol=1e-6, atol=0)


def test_the_loss_of_mixed_images_is_the_mixed_loss():
    net, x, y = normless(), torch.randn(8, 3, 16, 16, dtype=torch.float64), torch.arange(8) % 4
    share = torch.tensor(0.3, dtype=torch.float64)
    logits = net(0.3 * x + 0.7 * x.flip(0))
    targets = 0.3 * F.one_hot(y, 4) + 0.7 * F.one_hot(y.flip(0), 4)
    smoothed = 0.9 * targets + 0.1 / 4
    expected = F.cross_entropy(logits, smoothed)
    recipe = dataclasses.replace(BASE, label_smoothing=0.1, mixup=0.4)
    objective, optimizer = as_they_are(net, recipe), torch.optim.SGD(net.parameters())
    step = TrainStep(objective, optimizer, lambda: None, recipe, device=CPU, graph=False)
    step(x, y, share)
    assert step.totals.values[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_mixing_changes_with_the_step_and_not_with_the_run():
    runs = [started(mixup=0.4) for _ in range(2)]
    shares = [[mixed_share(run.recipe, 0, step, CPU).item() for step in range(4)] for run in runs]
    assert shares[0] == shares[1]
    assert len(set(shares[0])) == 4
    assert 0 < mixed_share(dataclasses.replace(runs[0].recipe, seed=-1), 0, 0, CPU).item() < 1


def test_the_average_is_the_moving_average_of_the_weights_and_starts_at_the_first():
    run = started(ema=0.75)
    expected = None
    for number, (x, y) in enumerate(run.batches.pixels(0)):
        run.train_on(x, y, 0, number)
        now = {name: value.double() for name, value in weights(run).items()}
        expected = now if expected is None else {name: 0.75 * expected[name] + 0.25 * now[name] for name in now}
    for name, value in run.ema.module.named_parameters():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9995])
def test_whole_numbers_in_the_average_are_the_models(decay):
    """Indices of a shuffle, say, which an average would round down."""
    net = nn.BatchNorm1d(2)
    net.register_buffer("order", torch.arange(200))
    averaged = moving_average(net, decay)
    for _ in range(5):
        net(torch.randn(4, 2))
        averaged.update_parameters(net)
    assert torch.equal(averaged.module.order, net.order)
    assert averaged.module.num_batches_tracked == 5
    assert not torch.equal(averaged.module.running_mean, net.running_mean)


@pytest.mark.parametrize("fields", [{}, {"clip": 0.1}, {"weight_decay": 0.01, "mixup": 0.4}], ids=str)
def test_the_real_blocks_and_the_operators_that_imagine_them_have_the_same_losses(fields):
    """In float64, also with the gradient clipped: by the norm that the real blocks' gradient has."""
    plain, real = (started(method, double=True, **fields) for method in ("repopt", "csla"))
    plain.subject.model.load_state_dict(merge(real.subject.model).state_dict())  # drawn in float32: equal to its eps
    for number, (x, y) in enumerate([*plain.batches.pixels(0), *plain.batches.pixels(1)]):
        for run in (plain, real):
            run.train_on(x.double(), y, number // 2, number % 2)
        assert plain.step.totals.values[0].item() == pytest.approx(real.step.totals.values[0].item(), rel=1e-6)
    plain.subject.model.eval(), real.subject.model.eval()
    torch.testing.assert_close(plain.subject.model(x.double()), real.subject.model(x.double()), rtol=1e-9, atol=1e-10)


def test_a_plain_gradient_is_clipped_to_the_norm():
    run = started("sgd", clip=0.1)
    trained(run, 1)
    norm = torch.stack([param.grad.norm() for param in run.subject.model.parameters()]).norm()
    assert norm.item() == pytest.approx(0.1, rel=1e-3)


def test_bf16_trains_and_keeps_float32_weights(tmp_path):
    """In a process of its own: there are machines whose processor does not have the instruction that it reports."""
    digits = ["--data", "digits", "--limit", "64", "--recipe", "demo", "--epochs", "2", "--batch-size", "32"]
    args = ["train", *digits, "--lr", "0.01", "--warmup-epochs", "0", "--method", "sgd", "--kernel", "paper", "--quiet"]
    code, said = program(*args, "--precision", "bf16", "--out", tmp_path / "low", log=tmp_path / "log")
    if code == -signal.SIGILL:
        pytest.skip("this machine cannot multiply in bf16")
    assert code == 0, said
    whole = finished(*args, out=tmp_path / "whole")
    assert {value.dtype for value in load_run(tmp_path / "low").model.parameters()} == {torch.float32}
    losses = [[record["train_loss"] for record in metrics(folder)] for folder in (tmp_path / "low", whole)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]


def test_the_learning_rate_of_a_step_follows_from_its_number():
    run = started(warmup_epochs=1)
    trained(run)
    assert run.optimizer.param_groups[0]["lr"] == lr_at(run.recipe, 1, 2)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_what_it_is_shown(method):
    """Of one batch of digits shown over and over, the loss falls to about a fiftieth, on every processor."""
    shallow = {"depths": (1, 1, 1, 1), "strides": (1, 1, 2, 1, 2)}
    run = started(method, data="digits", options=shallow, lr=0.4)
    x, y = next(run.batches.pixels(0))
    losses = []
    for _ in range(40):
        before = run.step.totals.values[0].item()
        run.train_on(x, y, 0, 0)
        losses.append(run.step.totals.values[0].item() - before)
    assert losses[-1] < 0.2 * losses[0]


def test_a_run_evaluates_when_it_is_told_to_and_its_folder_holds_the_model(tmp_path, capsys):
    recipe = dataclasses.replace(BASE, epochs=3, eval_every=2, eval_size=24, eval_share=0.5, ema=0.5)
    job = Job(method="sgd", model="repopt_vgg_nano", data="fake:64,4,16", recipe=recipe)
    summary = train_run(job, tmp_path / "run", device="cpu", quiet=True)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["val_accuracy" in record for record in records] == [False, True, True]  # the last epoch always is
    assert all("ema_accuracy" in record for record in records[1:])
    assert summary["ema_accuracy"] == records[-1]["ema_accuracy"]
    conclude(tmp_path / "run", summary)
    assert f"accuracy of the moving average {summary['ema_accuracy']:.2f}: " in capsys.readouterr().out
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    page = write_report([tmp_path / "run", tmp_path / "again"], tmp_path / "both.html")
    assert page.read_text().count(f"moving average {summary['ema_accuracy']:.2f}") == 2
    scores = evaluate_run(tmp_path / "run", device="cpu")
    assert list(scores) == [24]
    assert scores[24].accuracy == summary["val_accuracy"]
    assert scores[24].loss == pytest.approx(records[-1]["val_loss"], rel=1e-6)
    assert list(evaluate_run(tmp_path / "run", sizes=(16, 32), device="cpu")) == [16, 32]
    averaged = tmp_path / "run" / "model_ema.safetensors"
    assert averaged.read_bytes() != (tmp_path / "run" / "model.safetensors").read_bytes()
    assert not load_run(tmp_path / "run").model.training


@pytest.mark.parametrize("method", ["branches", "csla", "search"])
def test_a_moving_average_of_branches_is_merged_as_the_model_is(tmp_path, method):
    job = Job(method=method, model="repopt_vgg_nano", data="fake:64,4,16", recipe=dataclasses.replace(BASE, ema=0.5))
    train_run(job if method != "csla" else dataclasses.replace(job, scales="ones"), tmp_path, device="cpu", quiet=True)
    model, averaged = (load_file(tmp_path / f"{name}.safetensors") for name in ("model", "model_ema"))
    assert averaged.keys() == model.keys()
    assert any(not torch.equal(averaged[name], model[name]) for name in model)


def test_an_epoch_that_was_stopped_after_its_last_step_has_the_speed_of_its_steps():
    recipe = dataclasses.replace(BASE, epochs=2, eval_every=1)
    job = Job(method="sgd", model="repopt_vgg_nano", data="fake:64,4,16", recipe=recipe)
    run = Trainer(build(job, data := load_data(job.data), CPU), data, recipe, None, device=CPU)
    run.position.epoch, run.position.step, run.position.seconds = 1, len(run.batches), 0.5  # as a checkpoint says
    run.step.totals.values.copy_(torch.tensor([3.0, 6.0, 3.0, 3.0]))
    assert 0 < run.fit()["images_per_second"] <= len(run.batches) * recipe.batch_size / 0.5


@pytest.mark.parametrize("steps", [1, 3, 4, 5])
def test_epochs_shorter_than_the_warm_up_have_a_speed_that_a_machine_can_have(tmp_path, monkeypatch, steps):
    monkeypatch.setattr(repopt.train.loop, "compiled", lambda model, tuned: model)  # only the clock is looked at
    recipe = dataclasses.replace(BASE, epochs=3, compile=True)
    data = f"fake:{steps * recipe.batch_size},4,16"
    train_run(Job(method="sgd", model="repopt_vgg_nano", data=data, recipe=recipe), tmp_path, device="cpu", quiet=True)
    assert all(0 < epoch.images_per_second < 1e7 for epoch in read_run(tmp_path).epochs)


def test_the_mode_of_the_model_survives_an_evaluation():
    run = started()
    run._evaluated()
    assert run.subject.model.training


def test_a_batch_that_parts_and_processes_cannot_share_is_a_sentence():
    run = started()
    world = dataclasses.replace(run.world, size=2)
    recipe = dataclasses.replace(BASE, batch_size=12, accumulate=4)
    with pytest.raises(ValueError, match="a batch of 12 cannot be computed by 2 processes in 4 equal parts each"):
        Trainer(copy.deepcopy(run.subject), load_data("fake:64,4,16"), recipe, None, device=CPU, world=world)


def test_a_graph_on_a_cpu_is_a_sentence():
    with pytest.raises(ValueError, match="leave --graph out"):
        started(graph=True)


@pytest.fixture
def heeded(number):
    """A signal that is not ignored, as nohup ignores SIGHUP."""
    before = signal.signal(number, signal.default_int_handler)
    yield number
    signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_in_the_middle_of_an_epoch_loses_nothing(tmp_path, heeded):
    """In this process: a run that is stopped at its third step and resumed ends with the bits of one that was not."""
    job = Job(method="search", model="repopt_vgg_nano", data="fake:128,4,16", recipe=BASE, options=SMALL)
    train_run(job, tmp_path / "whole", device="cpu", quiet=True)
    data = load_data(job.data)
    subject = build(job, data, CPU)
    calls = []
    subject.model.register_forward_pre_hook(
        lambda module, args: calls.append(1) or (len(calls) == 3 and signal.raise_signal(heeded)) or None
    )
    folder = RunFolder(tmp_path / "stopped")
    folder.write("recipe.json", dataclasses.asdict(job.recipe))
    with pytest.raises(StoppedError, match=f"stopped by {heeded.name} after step 3 of epoch 1") as stopped:
        Trainer(subject, data, job.recipe, folder, device=CPU, quiet=True).fit()
    assert stopped.value.code == 128 + heeded
    resumed = Trainer(build(job, data, CPU), data, job.recipe, folder, device=CPU, quiet=True)
    assert resumed.resume()
    assert resumed.position.step == 3
    before = resumed.position.seconds
    assert before == resumed.clock.train > 0
    resumed.fit()
    folder.close()
    assert resumed.clock.train > folder.lines("metrics.jsonl")[0]["seconds"] > before
    merged = merge(resumed.subject.model).state_dict()
    for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(merged[name], weight), name
    assert [record["epoch"] for record in folder.lines("metrics.jsonl")] == [1, 2]


def test_a_hangup_that_nohup_ignores_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with (stop := StopOnSignal()):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not stop.asked


def test_a_thread_other_than_the_main_one_can_train(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor() as threads:
        summary = threads.submit(train_run, small_job(), tmp_path / "run", device="cpu", quiet=True).result()
    assert summary["epochs"] == 1
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_loss_that_is_not_finite_names_step_and_learning_rate(tmp_path):
    job = Job(method="sgd", model="repopt_vgg_nano", data="fake:128,4,16", recipe=dataclasses.replace(BASE, lr=1e12))
    with pytest.raises(
        RuntimeError, match=r"not finite .* step \d of epoch 1, where the learning rate was .*: the last good"
    ):
        train_run(job, tmp_path / "run", device="cpu", quiet=True)


def test_totals_of_a_checkpoint_are_shared_by_another_number_of_ranks():
    """Each rank has seen half of every batch: one process has their mean loss and all their hits."""
    ranks = [torch.tensor([3.0, 10.0, 4.0, 4.0]), torch.tensor([5.0, 14.0, 4.0, 4.0])]
    totals = Totals(CPU)
    totals.restore_(ranks, World())
    assert totals.values.tolist() == [4.0, 24.0, 4.0, 4.0]
    totals.restore_(ranks, World(rank=1, size=2))
    assert totals.values.tolist() == ranks[1].tolist()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_training_leaves_nothing_on_the_device(tmp_path):
    """Or the peak memory of the next one in the process would count it: graphs, streams, workspaces."""

    def held_after(name):
        train_run(small_job(images=64, epochs=2), tmp_path / name, device="cuda", quiet=True)
        gc.collect()
        return torch.cuda.memory_allocated()

    held_after("first")  # libraries keep what they need for themselves
    assert held_after("second") == held_after("third") == held_after("fourth")


def test_a_pruned_network_has_a_moving_average():
    net = nn.Sequential(nn.Conv2d(2, 2, 3))
    prune.l1_unstructured(net[0], "weight", 0.3)
    averaged = moving_average(net, 0.9)
    averaged.update_parameters(net)
    torch.testing.assert_close(averaged(torch.ones(1, 2, 4, 4)), net(torch.ones(1, 2, 4, 4)))
