"""What people do around a step, on every way to train the imagined blocks: grad route, branch route, closed form."""

import copy

import pytest
import torch
from torch.nn.utils import parametrizations, prune

from repopt.surgery.conversion import csla_model
from side_by_side import EXACT, WAYS, apart, backward, loss_of, small_net, train, twins

FOREACH_AND_FUSED = [
    ("grad", {"foreach": False}),
    ("grad", {"foreach": True}),
    ("grad", {"fused": True}),
    ("branch", {"foreach": False}),
    ("branch", {"foreach": True}),
    ("branch", {"fused": True}),
    ("closed", {"foreach": False}),
    ("closed", {"foreach": True}),
    ("closed", {"capturable": True}),
]


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def both(way, **options):
    net, plan, twin = twins()
    return (net, way.start(net.parameters(), plan, **options)), (twin, way.theirs(twin.parameters()))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("name", "implementation"), FOREACH_AND_FUSED)
def test_every_implementation_on_every_memory_format(name, implementation, memory_format):
    net, plan, twin = twins(small_net(memory_format))
    assert net[3].weight.is_contiguous(memory_format=memory_format)
    ours = WAYS[name].start(net.parameters(), plan, **implementation)
    train(net, ours, 50)
    train(twin, WAYS[name].theirs(twin.parameters()), 50)
    assert apart(net, twin) <= EXACT
    assert net[3].weight.is_contiguous(memory_format=memory_format)


def test_without_the_initialization_the_models_part(way):
    (net, ours), (twin, theirs) = both(way)
    with torch.no_grad():
        net[3].weight.copy_(torch.nn.Conv2d(6, 6, 3, groups=2).weight)
    train(net, ours, 20)
    train(twin, theirs, 20)
    assert apart(net, twin) > 1e-2


def test_gradients_accumulate_before_a_step(way):
    pairs = both(way)
    for model, optimizer in pairs:
        for step in range(10):
            optimizer.zero_grad()
            backward(model, 2 * step)
            backward(model, 2 * step + 1)
            optimizer.step()
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


def own_groups(model):
    """A group for each module, last first, each with its own options."""
    groups = {}
    for name, param in model.named_parameters():
        groups.setdefault(name.split(".")[0], []).append(param)
    return [
        {"params": params, "lr": 0.01 * (index + 1), "weight_decay": 0.02 * index}
        for index, params in reversed(list(enumerate(groups.values())))
    ]


def test_parameter_groups_in_any_order_with_their_own_options(way):
    net, plan, twin = twins()
    train(net, way.start(own_groups(net), plan), 30)
    train(twin, way.theirs(own_groups(twin)), 30)
    assert apart(net, twin) <= EXACT


def test_one_parameter_groups_and_named_parameters(way):
    net, plan, twin = twins()
    ours = way.start([{"params": [named]} for named in net.named_parameters()], plan)
    train(net, ours, 20)
    train(twin, way.theirs([{"params": [param]} for param in twin.parameters()]), 20)
    assert apart(net, twin) <= EXACT
    assert [group["param_names"] for group in ours.param_groups] == [[name] for name, _ in net.named_parameters()]


def test_a_frozen_operator_needs_no_optimizer_and_stays(way):
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, twin = twins(net)
    before = net[3].weight.clone()
    train(net, way.start([param for param in net.parameters() if param.requires_grad], plan), 20)
    train(twin, way.theirs(twin.parameters()), 20)
    assert torch.equal(net[3].weight, before)
    assert apart(net, twin) <= EXACT


def test_a_one_cycle_schedule_with_its_momentum(way):
    pairs = both(way)
    for model, optimizer in pairs:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=30)
        for step in range(30):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            schedule.step()
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


@pytest.mark.parametrize("as_keyword", [False, True])
def test_a_closure_is_run_before_its_gradient_is_used(way, as_keyword):
    pairs = both(way)
    losses = []
    for model, optimizer in pairs:

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        for _ in range(20):
            loss = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


@pytest.mark.parametrize(("name", "implementation"), FOREACH_AND_FUSED)
def test_a_grad_scaler_with_one_overflow(name, implementation):
    way = WAYS[name]
    net, plan, twin = twins()
    scales = []
    for model, optimizer in (
        (net, way.start(net.parameters(), plan, **implementation)),
        (twin, way.theirs(twin.parameters())),
    ):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        for step in range(20):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step) * (float("inf") if step == 7 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zero_grad_without_a_step(way, set_to_none):
    pairs = both(way)
    for model, optimizer in pairs:
        for step in range(20):
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(model, step)
            if step % 3:
                optimizer.step()
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


def test_weights_loaded_after_the_start_are_trained_on(way):
    net, plan, twin = twins()
    ours, theirs = way.start(net.parameters(), plan), way.theirs(twin.parameters())
    train(net, ours, 5)
    train(twin, theirs, 5)
    other = copy.deepcopy(net)
    kernels = plan.on(other).init_()
    net.load_state_dict(other.state_dict())
    twin.load_state_dict(csla_model(other, plan, kernels).state_dict())
    train(net, ours, 20)
    train(twin, theirs, 20)
    assert apart(net, twin) <= EXACT


def test_a_parameter_group_added_later(way):
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, twin = twins(net)
    ours = way.start([param for param in net.parameters() if param.requires_grad], plan)
    theirs = way.theirs([param for param in twin.parameters() if param.requires_grad])
    train(net, ours, 5)
    train(twin, theirs, 5)
    net[3].weight.requires_grad_(True)
    ours.add_param_group({"params": [net[3].weight]})
    kernels = list(twin[3].kernels.parameters())
    for kernel in kernels:
        kernel.requires_grad_(True)
    theirs.add_param_group({"params": kernels})
    train(net, ours, 20)
    train(twin, theirs, 20)
    assert apart(net, twin) <= EXACT


def test_an_operator_thawed_but_not_given_to_the_optimizer_is_named(way):
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, _ = twins(net)
    ours = way.start([param for param in net.parameters() if param.requires_grad], plan)
    net[3].weight.requires_grad_(True)
    backward(net)
    with pytest.raises(RuntimeError, match="the weight of '3' is trained but is not, or no longer, a parameter"):
        ours.step()


def test_an_operator_that_had_no_gradient_stays(way):
    net, plan, _ = twins()
    ours = way.start(net.parameters(), plan)
    train(net, ours, 2)
    before = net[3].weight.detach().clone()
    ours.zero_grad()
    net[0](torch.ones(1, 3, 8, 8, dtype=torch.float64)).sum().backward()
    ours.step()
    assert torch.equal(net[3].weight, before)


@pytest.mark.parametrize("change", [lambda module: prune.identity(module, "weight"), parametrizations.weight_norm])
def test_a_weight_that_is_no_parameter_any_more_is_named(way, change):
    net, plan, _ = twins()
    ours = way.start(net.parameters(), plan)
    train(net, ours, 1)
    change(net[3])
    backward(net)
    with pytest.raises(RuntimeError, match="the weight of '3' is no parameter of its module any more"):
        ours.step()
