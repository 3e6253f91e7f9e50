"""What a step differentiates, from pixels on, and how it is compiled."""

import copy
import dataclasses
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from repopt.data import load_data
from repopt.data.augment import scaled, scaling
from repopt.device import arithmetic
from repopt.models import create_model
from repopt.train.compiling import compiled, pad_few_channels_
from repopt.train.job import Job
from repopt.train.methods import METHODS
from repopt.train.objective import Objective
from repopt.train.recipe import demo
from repopt.train.training import build, train_run

CPU = torch.device("cpu")
SCALING = scaling((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), CPU)
PIXELS = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(8) % 4
DATA = load_data("fake:32,4,16")
TINY = {"depths": (1, 2), "widths": (4, 8), "strides": (2, 2, 1)}


def small():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4)
    )


def gradients(net):
    return [param.grad for param in net.parameters()]


@pytest.mark.parametrize("channels_last", [False, True])
def test_it_is_the_loss_of_the_normalized_images(channels_last):
    """To the last bit, and so are the gradients and the hits."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    ours, theirs = small().to(memory_format=layout), small().to(memory_format=layout)
    objective = Objective(ours, SCALING, label_smoothing=0.1, channels_last=channels_last)
    loss, hits = objective(PIXELS, LABELS)
    loss.backward()
    logits = theirs(scaled(PIXELS, *SCALING).contiguous(memory_format=layout))
    expected = F.cross_entropy(logits, LABELS, label_smoothing=0.1)
    expected.backward()
    assert torch.equal(loss, expected)
    assert hits.item() == (logits.argmax(1) == LABELS).sum().item()
    assert all(map(torch.equal, gradients(ours), gradients(theirs)))


def test_pixels_may_come_as_bytes_or_as_floats():
    losses = [Objective(small(), SCALING, label_smoothing=0.0, channels_last=False) for _ in range(2)]
    assert torch.equal(losses[0](PIXELS, LABELS)[0], losses[1](PIXELS.float(), LABELS)[0])


def test_the_model_keeps_its_names_and_its_state():
    net = small()
    names = list(net.state_dict())
    objective = Objective(net, SCALING, label_smoothing=0.0, channels_last=False)
    assert list(objective.state_dict()) == [f"model.{name}" for name in names]


def test_torch_knows_the_options():
    torch.compile(nn.ReLU(), options={"coordinate_descent_tuning": True})


@pytest.mark.parametrize(("name", "stems"), [("repopt_vgg_nano", 1), ("repvgg_nano", 2)])
def test_a_stem_over_padded_channels_is_the_stem(name, stems):
    """Outputs and gradients, in float64; RepVGG's stem has two convolutions."""
    padded = []

    def backend(graph, inputs):
        pad_few_channels_(graph, 8)
        padded.extend(graph.graph.find_nodes(op="call_function", target=F.pad))
        return graph.forward

    torch.manual_seed(0)
    net = create_model(name, num_classes=4, depths=(1, 1, 1, 1)).double()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    found = []
    for called in (net, torch.compile(net, backend=backend, dynamic=False)):
        net.zero_grad()
        y = called(x)
        y.square().sum().backward()
        found.append([y.detach(), *(param.grad.clone() for param in net.parameters())])
    assert len(padded) == 2 * stems
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_compiled_loss_is_the_loss():
    """In bf16, to its precision, with the stem padded."""
    net = small().to(device="cuda", memory_format=torch.channels_last)
    objective = Objective(net, tuple(each.cuda() for each in SCALING), label_smoothing=0.1, channels_last=True)
    pixels, labels = PIXELS.cuda(), LABELS.cuda()
    found = []
    for called in (objective, compiled(objective, tuned=True)):
        net.zero_grad()
        with arithmetic(tf32=False):
            with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
                loss, _ = called(pixels, labels)
            loss.backward()
        stem = next(net.parameters()).grad
        found.append((loss.detach(), stem / stem.norm()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-2, atol=1e-2)
    assert (found[0][1] - found[1][1]).norm() < 0.05


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch compiles in this test, as it hands them to Inductor."""
    found = []
    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.compile", lambda graph, inputs, options: found.append(graph) or graph.forward)
    yield found
    torch.compiler.reset()


def compiled_once(net, images=8, smoothing=0.1, precision=torch.float32):
    """Takes the loss of a compiled model, and its gradients."""
    net.zero_grad()
    objective = compiled(Objective(net, SCALING, label_smoothing=smoothing, channels_last=False), tuned=False)
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        loss, _ = objective(PIXELS[:images], LABELS[:images])
    loss.backward()
    return [loss.detach(), *gradients(net)]


@pytest.mark.no_cover  # the time goes into torch's compiler
@pytest.mark.parametrize("method", METHODS)
def test_what_was_compiled_serves_the_next_model_of_the_same_modules_and_shapes(method, graphs):
    job = Job(method=method, model="repopt_vgg_nano", data=DATA.name, recipe=demo(), scales="ones", options=TINY)
    for seed in (0, 1):
        net = build(dataclasses.replace(job, recipe=dataclasses.replace(demo(), seed=seed)), DATA, CPU).model
        before = copy.deepcopy(net)
        found = compiled_once(net)
        loss, _ = Objective(before, SCALING, label_smoothing=0.1, channels_last=False)(PIXELS, LABELS)
        loss.backward()
        assert all(map(torch.equal, found, [loss.detach(), *gradients(before)]))
        del net, before
        gc.collect()  # what was compiled outlives the model that it was compiled for
    assert len(graphs) == 1


def test_it_serves_no_other_shape_precision_loss_or_model(graphs):
    other = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))
    compiled_once(small())
    for number, change in enumerate(({"images": 4}, {"smoothing": 0.0}, {"precision": torch.bfloat16}), start=2):
        compiled_once(small(), **change)
        assert len(graphs) == number
    compiled_once(other)
    assert len(graphs) == 5


@pytest.mark.no_cover  # the time goes into torch's compiler
def test_more_models_are_compiled_than_torch_allows_by_default(graphs):
    for features in range(1, 12):
        compiled_once(nn.Sequential(nn.Flatten(), nn.Linear(768, features), nn.Linear(features, 4)))
    assert len(graphs) == 11


@pytest.mark.no_cover  # the time goes into torch's compiler
@pytest.mark.parametrize("method", ["repopt", pytest.param("repvgg", marks=pytest.mark.slow)])
def test_the_second_seed_is_trained_by_what_the_first_compiled_and_as_it_is_alone(method, tmp_path):
    """By Inductor, to the last bit."""
    from torch._dynamo.utils import counters

    def train(seed, name):
        recipe = dataclasses.replace(demo(), epochs=2, batch_size=16, warmup_epochs=0, seed=seed, compile=True)
        job = Job(method=method, model="repopt_vgg_nano", data=DATA.name, recipe=recipe, scales="ones", options=TINY)
        before = counters["stats"]["unique_graphs"]
        train_run(job, tmp_path / name, device="cpu", quiet=True)
        return (tmp_path / name / "model.safetensors").read_bytes(), counters["stats"]["unique_graphs"] - before

    torch.compiler.reset()
    train(0, "first")
    shared, compiled_anew = train(1, "shared")
    torch.compiler.reset()
    alone, compiled_alone = train(1, "alone")
    assert (compiled_anew, compiled_alone) == (0, 1)
    assert shared == alone
