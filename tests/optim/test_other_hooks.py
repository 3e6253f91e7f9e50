"""Other hooks of a step, closures and resets do to imagined blocks what they do to real ones, on every way to train."""

import pytest
import torch

import repopt
from side_by_side import EXACT, WAYS, Way, adamw, apart, attached, backward, train, twins

# the grad route proper, which has a stand-in: SGD's step is a closed form
WAYS = {**WAYS, "ASGD": Way(attached(torch.optim.ASGD), torch.optim.ASGD)}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def both(way):
    net, plan, twin = twins()
    return (net, way.start(net.parameters(), plan)), (twin, way.theirs(twin.parameters()))


@pytest.mark.parametrize("make", [adamw, torch.optim.ASGD])
def test_a_scheduler_in_a_post_hook_from_before_attach(make):
    net, plan, twin = twins()
    for model in (net, twin):
        optimizer = make(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        optimizer.register_step_post_hook(lambda *_, scheduler=scheduler: scheduler.step())
        if model is net:
            repopt.attach(optimizer, plan)
        train(model, optimizer, 4)
        assert optimizer.param_groups[0]["lr"] == 0.01 / 16
    assert apart(net, twin) <= EXACT


def test_a_pre_hook_changes_gradients_and_learning_rate(way):
    """Registered after attach: it comes after ours."""
    pairs = both(way)
    for model, optimizer in pairs:
        first, steps = optimizer.param_groups[0]["lr"], iter(range(10))

        def change(optimizer, args, kwargs, model=model, first=first, steps=steps):
            step = next(steps)
            optimizer.param_groups[0]["lr"] = first / (1 + step)
            for param in model.parameters():
                param.grad.mul_(10 if step % 2 else 0.1)

        optimizer.register_step_pre_hook(change)
        train(model, optimizer, 6)
        assert optimizer.param_groups[0]["lr"] == first / 6
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


class Bare(torch.optim.Optimizer):
    """Whose step takes no closure."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            param.sub_(param.grad, alpha=self.param_groups[0]["lr"])


class Deaf(Bare):
    """Which takes one and does not call it."""

    def step(self, closure=None):
        super().step.__wrapped__(self)


@pytest.mark.parametrize("make", [Bare, Deaf, adamw])
def test_a_pre_hook_that_looks_on_changes_nothing(make):
    """Also one that hands on the arguments of its own."""
    net, plan, twin = twins()
    for model in (net, twin):
        optimizer, seen = make(model.parameters()), []
        if model is net:
            repopt.attach(optimizer, plan)
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs, seen=seen: seen.append(1))
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: ((args[0],), {}))
        train(model, optimizer, 4)
        assert len(seen) == 4
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("max_norm", [None, 1e9])
@pytest.mark.parametrize("make", [adamw, torch.optim.ASGD])
def test_a_pre_hook_takes_a_gradient_away_and_replaces_the_state(make, max_norm):
    net, plan, twin = twins()
    for model in (net, twin):
        optimizer, steps = make(model.parameters()), iter(range(10))
        if model is net:
            repopt.attach(optimizer, plan, max_norm=max_norm)

        def change(optimizer, args, kwargs, model=model, steps=steps):
            for param, held in list(optimizer.state.items()):
                optimizer.state[param] = {key: value.clone() for key, value in held.items()}
            if next(steps) % 2:
                for param in (*model[3].parameters(), model[6].bias):
                    param.grad = None

        optimizer.register_step_pre_hook(change)
        train(model, optimizer, 5)
    assert apart(net, twin) <= EXACT


def test_groups_that_are_made_anew_go_on():
    net, plan, twin = twins()
    for model in (net, twin):
        optimizer = adamw(model.parameters())
        if model is net:
            repopt.attach(optimizer, plan)
        train(model, optimizer, 2)
        (group,) = optimizer.param_groups
        params, options = group["params"], {key: group[key] for key in group if key not in ("params", "repopt")}
        optimizer.param_groups = [{"params": params[:1], **options}, {"params": params[1:], **options}]
        train(model, optimizer, 2, first=2)
    assert apart(net, twin) <= EXACT


def test_a_state_that_is_no_dict_is_saved():
    net, plan, _ = twins()
    optimizer = adamw(net.parameters())
    repopt.attach(optimizer, plan)
    optimizer.state["count"], optimizer.state["sums"] = 0, torch.zeros(3)
    train(net, optimizer, 2)
    assert {"count", "sums"} <= optimizer.state_dict()["state"].keys()


def test_a_closure_changes_the_learning_rate(way):
    pairs = both(way)
    for model, optimizer in pairs:
        first = optimizer.param_groups[0]["lr"]
        for step in range(6):

            def closure(model=model, optimizer=optimizer, first=first, step=step):
                optimizer.param_groups[0]["lr"] = first / (1 + step)
                optimizer.zero_grad()
                backward(model, step)

            optimizer.step(closure)
        assert optimizer.param_groups[0]["lr"] == first / 6
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


@pytest.mark.parametrize("make", [adamw, torch.optim.ASGD])
def test_a_post_hook_from_before_attach_sees_the_step(make):
    net, plan, _ = twins()
    optimizer, seen = make(net.parameters()), []
    optimizer.register_step_post_hook(lambda *_: seen.append(net[3].weight.detach().clone()))
    repopt.attach(optimizer, plan)
    for _ in range(2):
        train(net, optimizer, 1)
        torch.testing.assert_close(seen[-1], net[3].weight.detach(), rtol=0, atol=0)


def test_a_state_that_is_cleared_starts_anew(way):
    pairs = both(way)
    for model, optimizer in pairs:
        train(model, optimizer, 5)
        optimizer.state.clear()
        train(model, optimizer, 5, first=5)
    assert apart(pairs[0][0], pairs[1][0]) <= EXACT


def test_the_state_of_one_weight_starts_anew():
    net, plan, twin = twins()
    ours, theirs = adamw(net.parameters()), adamw(twin.parameters())
    repopt.attach(ours, plan)
    train(net, ours, 5)
    train(twin, theirs, 5)
    del ours.state[net[3].weight]
    for name, param in twin[3].named_parameters():
        if name != "bias":
            theirs.state.pop(param, None)
    train(net, ours, 5, first=5)
    train(twin, theirs, 5, first=5)
    assert apart(net, twin) <= EXACT


def test_without_other_parameters_a_cleared_state_starts_anew_too():
    fresh = []
    for cleared in (False, True):
        torch.manual_seed(0)
        net, plan, _ = twins()
        optimizer = adamw([net[0].weight, net[3].weight])
        repopt.attach(optimizer, plan)
        if cleared:
            train(net, optimizer, 3)
            optimizer.state.clear()
            with torch.no_grad():
                for param, old in zip(net.parameters(), fresh[0], strict=True):
                    param.copy_(old)
        else:
            fresh.append([param.detach().clone() for param in net.parameters()])
        train(net, optimizer, 1)
        fresh.append(net[3].weight.detach().clone())
    torch.testing.assert_close(fresh[2], fresh[1])


def test_a_group_that_is_taken_away_takes_its_own_state_alone():
    net, plan, twin = twins()
    for model in (net, twin):
        convs = [*model[0].parameters(), *model[3].parameters()]
        others = [*model[1].parameters(), *model[6].parameters()]
        optimizer = adamw([{"params": convs}, {"params": others}])
        if model is net:
            repopt.attach(optimizer, plan)
        train(model, optimizer, 3)
        for param in optimizer.param_groups.pop()["params"]:
            del optimizer.state[param]
        train(model, optimizer, 3, first=3)
    assert apart(net, twin) <= EXACT


def test_what_a_hook_keeps_in_the_state_is_kept(way):
    _, (twin, _) = pairs = both(way)
    for model, optimizer in pairs:

        def count(optimizer, args, kwargs):
            optimizer.state["steps"] = {"count": optimizer.state["steps"].get("count", 0) + 1}

        optimizer.register_step_pre_hook(count)
        train(model, optimizer, 3)
        assert optimizer.state["steps"]["count"] == 3
    assert apart(pairs[0][0], twin) <= EXACT


@pytest.mark.parametrize("make", [adamw, torch.optim.ASGD])
def test_a_weight_that_a_closure_writes_is_as_one_written_before_the_step(make):
    nets = []
    for inside in (False, True):
        torch.manual_seed(0)
        net, plan, _ = twins()
        optimizer = make(net.parameters())
        repopt.attach(optimizer, plan)
        for step in range(5):

            def closure(net=net, optimizer=optimizer, step=step, inside=inside):
                with torch.no_grad():
                    if inside:
                        net[3].weight.clamp_(-0.1, 0.1)
                optimizer.zero_grad()
                backward(net, step)

            with torch.no_grad():
                if not inside:
                    net[3].weight.clamp_(-0.1, 0.1)
            optimizer.step(closure)
        nets.append(net)
    assert apart(*nets) <= EXACT


@pytest.mark.parametrize("make", [repopt.optim.AdamW, repopt.optim.SGD, repopt.optim.Lion])
def test_another_default_device_is_only_that(make):
    """Of tensors that a user makes; ours are where the weights are."""
    nets = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        net, plan, _ = twins()
        grads = [torch.randn_like(param) for param in net.parameters()]
        with torch.device(device):
            optimizer = make(net.parameters(), plan, lr=0.01)
            for _ in range(2):
                for param, grad in zip(net.parameters(), grads, strict=True):
                    param.grad = grad.clone()
                optimizer.step()
        nets.append(net)
    assert apart(*nets) == 0
