"""Every way to train the imagined blocks, on a GPU: the same equality, captured in a graph and under GradScaler."""

import copy

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.surgery.conversion import csla_model
from repopt.verification.cases import mixed_sign_scales
from side_by_side import adamw, attached, closed_adamw, sgd

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


# ours, the real block's, options
WAYS = [
    (attached(sgd), sgd, {"foreach": False}),
    (attached(sgd), sgd, {"foreach": True}),
    (attached(sgd), sgd, {"fused": True}),
    (attached(adamw), adamw, {"foreach": True}),
    (attached(adamw), adamw, {"fused": True}),
    (closed_adamw, adamw, {"foreach": False}),
    (closed_adamw, adamw, {"foreach": True}),
    (closed_adamw, adamw, {"capturable": True}),
]
GRAPH_WAYS = [
    (attached(sgd), sgd, {"fused": True}, {"fused": True}),
    (attached(adamw), adamw, {"fused": True, "capturable": True}, {"fused": True, "capturable": True}),
    (closed_adamw, adamw, {"capturable": True}, {"capturable": True}),
]


def twins(memory_format=torch.contiguous_format):
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=2),
        nn.Flatten(),
        nn.Linear(16 * 16, 5),
    )
    net = net.cuda().double().to(memory_format=memory_format)
    bare = repopt.plan(net, {"0|2": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    return net, plan, csla_model(net, plan, plan.init_())


def apart(net, twin):
    x = torch.randn(4, 3, 8, 8, device="cuda", dtype=torch.float64)
    return ((net(x) - twin(x)).abs().max() / twin(x).abs().max()).item()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("ours", "theirs", "options"), WAYS)
def test_block_and_operator_stay_equal(ours, theirs, options, memory_format):
    net, plan, twin = twins(memory_format)
    pairs = ((net, ours(net.parameters(), plan, **options)), (twin, theirs(twin.parameters())))
    for _ in range(50):
        x = torch.randn(4, 3, 8, 8, device="cuda", dtype=torch.float64)
        for model, optimizer in pairs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert apart(net, twin) <= 1e-12


@pytest.mark.parametrize(("ours", "theirs", "options"), WAYS)
def test_block_and_operator_stay_equal_where_the_gpu_is_the_default_device(ours, theirs, options):
    with torch.device("cuda"):
        net, plan, twin = twins()
        pairs = ((net, ours(net.parameters(), plan, **options)), (twin, theirs(twin.parameters())))
        for _ in range(10):
            x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
            for model, optimizer in pairs:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        assert apart(net, twin) <= 1e-12


@pytest.mark.parametrize(("ours", "theirs", "options", "their_options"), GRAPH_WAYS)
def test_a_step_captured_in_a_graph_trains_the_block(ours, theirs, options, their_options):
    net, plan, twin = twins()
    x = torch.zeros(4, 3, 8, 8, device="cuda", dtype=torch.float64)

    def step(model, optimizer):
        optimizer.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimizer.step()

    replays = []
    for model, optimizer in (
        (net, ours(net.parameters(), plan, **options)),
        (twin, theirs(twin.parameters(), **their_options)),
    ):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for seed in range(3):
                x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype))
                step(model, optimizer)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(model, optimizer)
        replays.append(graph.replay)
    for _ in range(30):
        x.normal_()
        for replay in replays:
            replay()
    torch.cuda.synchronize()
    assert apart(net, twin) <= (1e-12 if theirs is sgd else 1e-4)  # a step count on the device is a float32


@pytest.mark.parametrize(("ours", "options"), [(ours, options) for ours, _, options, _ in GRAPH_WAYS])
def test_eager_steps_between_replays_leave_the_graph_as_it_was(ours, options):
    """Steps with other gradients, other parameters and another learning rate, then the graph with its own."""
    net, plan, _ = twins()
    other = copy.deepcopy(net)
    optimizers = ours(net.parameters(), plan, **options), ours(other.parameters(), plan.on(other), **options)
    grads = [torch.randn_like(param) for param in net.parameters()]

    def give(model, found):
        for param, grad in zip(model.parameters(), found, strict=True):
            param.grad = grad

    for model, optimizer in zip((net, other), optimizers, strict=True):
        give(model, grads)
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[0].step()
    for left_out in range(6):
        others = [None if at == left_out % len(grads) else torch.randn_like(grad) for at, grad in enumerate(grads)]
        for model, optimizer, again in zip((net, other), optimizers, (graph.replay, optimizers[1].step), strict=True):
            give(model, others)
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 2
            give(model, grads)
            again()
    torch.cuda.synchronize()
    for replayed, eager in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(replayed, eager, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("ours", "theirs", "options"), WAYS[1:5:2])
def test_a_graph_of_the_passes_alone_leaves_the_step_to_us(ours, theirs, options):
    """The gradients are always the same tensors, and a replay gives them no new version."""
    net, plan, twin = twins()
    x = torch.zeros(4, 3, 8, 8, device="cuda", dtype=torch.float64)
    replays = []
    for model in (net, twin):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)

        def passes(model=model):
            for param in model.parameters():
                param.grad.zero_()
            model(x).square().mean().backward()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                passes()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
        replays.append(graph.replay)
    optimizers = ours(net.parameters(), plan, **options), theirs(twin.parameters())
    for _ in range(20):
        x.normal_()
        for replay, optimizer in zip(replays, optimizers, strict=True):
            replay()
            optimizer.step()
    assert apart(net, twin) <= 1e-12


@pytest.mark.parametrize(("ours", "theirs", "options"), WAYS)
def test_a_grad_scaler_with_one_overflow(ours, theirs, options):
    net, plan, twin = twins()
    pairs = ((net, ours(net.parameters(), plan, **options)), (twin, theirs(twin.parameters())))
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=5) for _ in range(2)]
    for step in range(20):
        x = torch.randn(4, 3, 8, 8, device="cuda", dtype=torch.float64)
        for (model, optimizer), scaler in zip(pairs, scalers, strict=True):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss * (float("inf") if step == 7 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert apart(net, twin) <= 1e-12


def test_a_model_moved_to_the_gpu_after_attach_is_trained_there():
    net = nn.Linear(4, 4)
    plan = repopt.plan(net, {"^$": [repopt.Linear(), Identity()]}, scales="ones")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan)
    net.cuda()
    before = net.weight.detach().clone()
    net(torch.ones(1, 4, device="cuda")).sum().backward()
    optimizer.step()
    expected = before - 0.1 * (1 + torch.eye(4, device="cuda"))
    torch.testing.assert_close(net.weight.detach(), expected)
