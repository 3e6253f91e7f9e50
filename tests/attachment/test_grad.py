"""The Rule of Iteration on the grad route: after any number of steps, plain operator and real block are equal."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import repopt
from repopt import Conv, Identity, Scales
from repopt.matrix import BRANCH_SETS, SGD_RULES, mixed_sign_scales, run_row
from repopt.multiplier import Multiplier
from repopt.surgery import csla_model

EXACT = 1e-12


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, **options})


def small_net(memory_format=torch.contiguous_format):
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )
    return net.double().to(memory_format=memory_format)


def twins(net=None):
    """A plain net with its plan, and the real blocks with the same kernels."""
    net = small_net() if net is None else net
    bare = repopt.plan(net, {"0|3": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    return net, plan, csla_model(net, plan, plan.init_())


def batch(step=0):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 8, 8, generator=draw, dtype=torch.float64)


def backward(model, step=0):
    model(batch(step)).square().mean().backward()


def apart(net, twin):
    x = batch(99)
    net.eval(), twin.eval()
    return ((net(x) - twin(x)).abs().max() / twin(x).abs().max()).item()


@pytest.mark.parametrize("branch_set", BRANCH_SETS)
@pytest.mark.parametrize("rule", SGD_RULES)
def test_block_and_operator_stay_equal(rule, branch_set):
    difference = run_row(rule, SGD_RULES[rule], branch_set).report.differences[0]
    assert difference.worst <= EXACT
    assert difference.moved > 0.01


@pytest.mark.parametrize("implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_implementation_on_every_memory_format(implementation, memory_format):
    net, plan, twin = twins(small_net(memory_format))
    assert net[3].weight.is_contiguous(memory_format=memory_format)
    ours, theirs = sgd(net.parameters(), **implementation), sgd(twin.parameters())
    repopt.attach(ours, plan)
    for step in range(50):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    assert apart(net, twin) <= EXACT


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape_sign_and_hyper_parameter(data):
    groups = data.draw(st.sampled_from([1, 2, 3]), "groups")
    inputs, outputs = (groups * data.draw(st.integers(1, 3), what) for what in ("inputs", "outputs"))
    taps, dilation = data.draw(st.sampled_from([1, 3, 5]), "taps"), data.draw(st.integers(1, 2), "dilation")
    padding = data.draw(st.integers(0, dilation * (taps - 1) // 2), "padding")
    dims = data.draw(st.integers(1, 3), "dims")
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    net = kind(inputs, outputs, taps, data.draw(st.integers(1, 2), "stride"), padding, dilation, groups)
    smaller = data.draw(st.sampled_from([size for size in (1, 3, 5) if size <= taps]), "smaller")
    bare = repopt.plan(net, {"^$": [Conv(taps), Conv(smaller), Identity()]})
    number = st.floats(-2, 2)
    scales = Scales(
        {
            "": {
                branch: torch.tensor(
                    data.draw(st.lists(number, min_size=outputs, max_size=outputs)), dtype=torch.float64
                )
                for branch in bare.blocks[""].branches
                if branch != "identity"
            }
        }
    )
    momentum = data.draw(st.floats(0, 0.95), "momentum")
    options = {
        "lr": data.draw(st.floats(1e-4, 0.02), "lr"),
        "momentum": momentum,
        "weight_decay": data.draw(st.floats(0, 0.1), "decay"),
        "nesterov": momentum > 0 and data.draw(st.booleans(), "nesterov"),
        "maximize": data.draw(st.booleans(), "maximize"),
    }
    report = repopt.verify(net, bare.with_scales(scales), lambda p: torch.optim.SGD(p, **options), steps=20)
    assert report.worst <= 1e-11  # a drawn kernel may be near zero, and the difference is relative to it


# What breaks the equality


def test_without_the_initialization_the_models_part():
    net, plan, _ = twins()
    kernels = plan.init_()
    twin = csla_model(net, plan, kernels)
    with torch.no_grad():
        net[3].weight.copy_(nn.Conv2d(6, 6, 3, groups=2).weight)
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    train_both(net, ours, twin, theirs)
    assert apart(net, twin) > 1e-2


def train_both(net, ours, twin, theirs, steps=20):
    for step in range(steps):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()


def wrong_multiplier(change):
    """A plan's multiplier with its taps changed."""
    right = repopt.Plan.multiplier

    def multiplier(self, name, degree=1):
        found = right(self, name, degree)
        return Multiplier(shape=found.shape, taps=change(self, name, found), diagonals=found.diagonals)

    return multiplier


def signed(plan, name, found):
    """s * |s| instead of s^2, at the taps that belong to the 3x3 branch alone."""
    return found.taps * plan.constants(name)["conv3x3"].sign().view(-1, 1, 1, 1)


def even(plan, name, found):
    """The right mean everywhere: dense, but blind to the branches."""
    return found.taps.mean(dim=(2, 3), keepdim=True).expand_as(found.taps)


@pytest.mark.parametrize("change", [signed, even])
def test_with_a_wrong_multiplier_the_models_part(change, monkeypatch):
    net, plan, twin = twins()
    monkeypatch.setattr(repopt.Plan, "multiplier", wrong_multiplier(change))
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    train_both(net, ours, twin, theirs)
    assert apart(net, twin) > 1e-2


def test_without_attach_the_models_part():
    net, _, twin = twins()
    train_both(net, sgd(net.parameters()), twin, sgd(twin.parameters()))
    assert apart(net, twin) > 1e-2


# What people do around a step


def test_gradients_accumulate_before_a_step():
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    for step in range(10):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, 2 * step)
            backward(model, 2 * step + 1)
            optimizer.step()
    assert apart(net, twin) <= EXACT


def grouped_params(model, names):
    """Reversed, each group with its own options; the same groups for a block's kernels as for an operator's weight."""
    groups = {name: [] for name in names}
    for name, param in model.named_parameters():
        groups[name.split(".")[0]].append(param)
    return [
        {"params": params, "lr": 0.01 * (index + 1), "weight_decay": 0.02 * index, "momentum": 0.5 + 0.1 * index}
        for index, params in reversed(list(enumerate(groups.values())))
    ]


def test_parameter_groups_in_any_order_with_their_own_options():
    net, plan, twin = twins()
    names = [name for name, _ in net.named_children() if list(net.get_submodule(name).parameters())]
    ours, theirs = sgd(grouped_params(net, names)), sgd(grouped_params(twin, names))
    repopt.attach(ours, plan)
    train_both(net, ours, twin, theirs, 30)
    assert apart(net, twin) <= EXACT


def test_a_frozen_operator_needs_no_optimizer_and_stays():
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, twin = twins(net)
    before = net[3].weight.clone()
    ours = sgd([param for param in net.parameters() if param.requires_grad])
    repopt.attach(ours, plan)
    train_both(net, ours, twin, sgd(twin.parameters()))
    assert torch.equal(net[3].weight, before)
    assert apart(net, twin) <= EXACT


def test_a_one_cycle_schedule_with_its_momentum():
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(each, max_lr=0.1, total_steps=30) for each in (ours, theirs)]
    for step in range(30):
        for model, optimizer, schedule in zip((net, twin), (ours, theirs), schedules, strict=True):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            schedule.step()
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("as_keyword", [False, True])
def test_a_closure_is_run_before_its_gradient_is_multiplied(as_keyword):
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    for step in range(20):
        losses = []
        for model, optimizer in ((net, ours), (twin, theirs)):

            def closure(model=model, optimizer=optimizer, step=step):
                optimizer.zero_grad()
                loss = model(batch(step)).square().mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure=closure) if as_keyword else optimizer.step(closure))
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-10)
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_grad_scaler_with_one_overflow(implementation):
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters(), **implementation), sgd(twin.parameters(), **implementation)
    repopt.attach(ours, plan)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5) for _ in range(2)]
    for step in range(20):
        for model, optimizer, scaler in zip((net, twin), (ours, theirs), scalers, strict=True):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            scaler.scale(loss * (float("inf") if step == 7 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale()
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zero_grad_without_a_step(set_to_none):
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    for step in range(20):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(model, step)
            if step % 3:
                optimizer.step()
    assert apart(net, twin) <= EXACT


def test_weights_loaded_after_attach_are_trained_on():
    net, plan, twin = twins()
    ours, theirs = sgd(net.parameters()), sgd(twin.parameters())
    repopt.attach(ours, plan)
    train_both(net, ours, twin, theirs, 5)
    other = copy.deepcopy(net)
    kernels = plan.on(other).init_()
    net.load_state_dict(other.state_dict())
    twin.load_state_dict(csla_model(other, plan, kernels).state_dict())
    train_both(net, ours, twin, theirs, 20)
    assert apart(net, twin) <= EXACT


def test_a_parameter_group_added_after_attach():
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, twin = twins(net)
    ours, theirs = (sgd([p for p in model.parameters() if p.requires_grad]) for model in (net, twin))
    repopt.attach(ours, plan)
    train_both(net, ours, twin, theirs, 5)
    net[3].weight.requires_grad_(True)
    ours.add_param_group({"params": [net[3].weight]})
    kernels = list(twin[3].kernels.parameters())
    for kernel in kernels:
        kernel.requires_grad_(True)
    theirs.add_param_group({"params": kernels})
    train_both(net, ours, twin, theirs, 20)
    assert apart(net, twin) <= EXACT


def test_an_operator_thawed_but_not_given_to_the_optimizer_is_named():
    net = small_net()
    net[3].weight.requires_grad_(False)
    net, plan, _ = twins(net)
    ours = sgd([param for param in net.parameters() if param.requires_grad])
    repopt.attach(ours, plan)
    net[3].weight.requires_grad_(True)
    backward(net)
    with pytest.raises(RuntimeError, match="the weight of '3' is trained but is not, or no longer, a parameter"):
        ours.step()


@pytest.mark.parametrize("implementation", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_second_step_on_the_same_gradient_is_refused(implementation):
    net, plan, _ = twins()
    ours = sgd(net.parameters(), **implementation)
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    with pytest.raises(RuntimeError, match="the gradient of '0' was multiplied for an earlier step"):
        ours.step()
    ours.zero_grad()
    backward(net)
    ours.step()


def test_a_step_after_a_failed_one_is_refused_until_there_is_a_new_gradient():
    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.param_groups[0]["nesterov"] = "broken"
    ours.param_groups[0]["momentum"] = None
    with pytest.raises(TypeError):
        ours.step()
    ours.param_groups[0].update(nesterov=False, momentum=0.9)
    with pytest.raises(RuntimeError, match="was multiplied for an earlier step"):
        ours.step()


def test_gradients_are_not_kept_alive():
    import weakref

    net, plan, _ = twins()
    ours = sgd(net.parameters())
    repopt.attach(ours, plan)
    backward(net)
    ours.step()
    grad = weakref.ref(net[3].weight.grad)
    ours.zero_grad(set_to_none=True)
    assert grad() is None
