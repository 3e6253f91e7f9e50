"""Optimizers that do more than step their parameters: the branch route takes them as they are, or says why not."""

import copy
from collections import defaultdict

import pytest
import pytorch_optimizer
import torch

import repopt
from side_by_side import EXACT, adamw, apart, backward, loss_of, train, twins


def test_a_step_that_evaluates_its_closure_again_sees_the_moved_kernels():
    """Two plain gradient steps within one step()."""

    class Twice(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.05})

        def step(self, closure):
            for _ in range(2):
                with torch.enable_grad():
                    loss = closure()
                with torch.no_grad():
                    for group in self.param_groups:
                        for param in group["params"]:
                            param.sub_(param.grad, alpha=group["lr"])
            return loss

    net, plan, twin = twins()
    ours, theirs = Twice(net.parameters()), Twice(twin.parameters())
    repopt.attach(ours, plan)
    for model, optimizer in ((net, ours), (twin, theirs)):
        for _ in range(5):

            def closure(model=model, optimizer=optimizer):
                optimizer.zero_grad()
                backward(model)

            optimizer.step(closure)
    assert apart(net, twin) <= EXACT


def test_a_step_that_calls_its_parents_step_is_taken_once():
    class Louder(torch.optim.AdamW):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    net, plan, twin = twins()
    ours = Louder(net.parameters(), lr=0.01)
    assert repopt.attach(ours, plan).route == "branch"
    train(net, ours, 10)
    train(twin, torch.optim.AdamW(twin.parameters(), lr=0.01), 10)
    assert ours.steps == 10
    assert apart(net, twin) <= EXACT


def test_options_that_a_step_changes_are_the_optimizers():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["count"] = group.get("count", 0) + 1
            return super().step(closure)

    net, plan, _ = twins()
    ours = Counting(net.parameters(), lr=0.01)
    repopt.attach(ours, plan)
    train(net, ours, 3)
    assert ours.param_groups[0]["count"] == 3


class Assigning(torch.optim.Optimizer):
    """Gives a parameter other memory at each step, as older rules do."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.data = param.data - group["lr"] * param.grad.data


class Keeping(torch.optim.Optimizer):
    """Keeps the gradient itself until the next step, as a rule may: gradients are made anew."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                last = self.state[param].get("last", param.grad)
                param.sub_(param.grad + 0.5 * last, alpha=group["lr"])
                self.state[param]["last"] = param.grad


@pytest.mark.parametrize("rule", [Assigning, Keeping])
def test_a_rule_that_keeps_the_gradient_or_assigns_to_data(rule):
    net, plan, twin = twins()
    ours, theirs = rule(net.parameters()), rule(twin.parameters())
    repopt.attach(ours, plan)
    train(net, ours, 10)
    train(twin, theirs, 10)
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("how", [{"max_norm": 1e9}, {"route": "grad", "allow_inexact": True}])
def test_what_is_assigned_to_data_arrives_where_the_rule_is_given_aliases(how):
    net, plan, _ = twins()
    ours = Assigning(net.parameters())
    repopt.attach(ours, plan, **how)
    before = [param.detach().clone() for param in net.parameters()]
    train(net, ours, 1)
    assert all(not torch.equal(param, old) for param, old in zip(net.parameters(), before, strict=True))


class Sharpness(torch.optim.Optimizer):
    """Takes the gradient a little uphill, and clears gradients itself: SAM."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure):
        evaluate, params = torch.enable_grad()(closure), self.param_groups[0]["params"]
        evaluate()
        uphill = {param: 0.1 * param.grad for param in params if param.grad is not None}
        for param, move in uphill.items():
            param.add_(move)
        self.zero_grad()
        evaluate()
        for param, move in uphill.items():
            param.sub_(move)
        for param in params:
            if param.grad is not None:
                param.sub_(param.grad, alpha=self.param_groups[0]["lr"])
        self.zero_grad()


class LookingAhead(torch.optim.Optimizer):
    """Moves before the first evaluation: Nesterov's momentum as he wrote it."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure):
        params = self.param_groups[0]["params"]
        momenta = [self.state[param].setdefault("momentum", torch.zeros_like(param)) for param in params]
        torch._foreach_sub_(params, [0.9 * momentum for momentum in momenta])
        self.zero_grad()
        torch.enable_grad()(closure)()
        step = [self.param_groups[0]["lr"] * param.grad for param in params]
        torch._foreach_sub_(params, step)
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, step)
        self.zero_grad()


@pytest.mark.parametrize("max_norm", [None, 1e9])
@pytest.mark.parametrize("rule", [Sharpness, LookingAhead])
def test_a_rule_that_moves_and_clears_gradients_around_its_evaluations(rule, max_norm):
    net, plan, twin = twins()
    ours, theirs = rule(net.parameters()), rule(twin.parameters())
    repopt.attach(ours, plan, max_norm=max_norm)
    for model, optimizer in ((net, ours), (twin, theirs)):
        for step in range(6):
            optimizer.step(lambda model=model, step=step: backward(model, step))
    assert apart(net, twin) <= EXACT
    assert all(param.grad is None for param in net.parameters())


class LoadingItself(torch.optim.AdamW):
    """Loads without torch's hooks, as 8-bit optimizers do."""

    def load_state_dict(self, state_dict):
        params = [param for group in self.param_groups for param in group["params"]]
        groups = zip(self.param_groups, state_dict["param_groups"], strict=True)
        self.__setstate__(
            {
                "state": defaultdict(
                    dict, {params[number]: dict(held) for number, held in state_dict["state"].items()}
                ),
                "param_groups": [{**copy.deepcopy(saved), "params": group["params"]} for group, saved in groups],
            }
        )


def test_a_state_that_an_optimizer_loads_itself():
    net, plan, _ = twins()
    ours = LoadingItself(net.parameters(), lr=0.01)
    repopt.attach(ours, plan)
    train(net, ours, 3)
    saved = copy.deepcopy((net.state_dict(), ours.state_dict()))
    train(net, ours, 3, first=3)

    again, same, _ = twins()
    resumed = LoadingItself(again.parameters(), lr=0.01)
    repopt.attach(resumed, same)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(again, resumed, 3, first=3)
    assert apart(again, net) <= EXACT

    resumed.load_state_dict(saved[1])
    assert resumed.state_dict()["state"].keys() == saved[1]["state"].keys()
    resumed.load_state_dict(saved[1])
    resumed.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    train(again, resumed, 1)

    other = plan.with_scales("ones")
    refused = LoadingItself(net.parameters(), lr=0.01)
    repopt.attach(refused, other)
    refused.load_state_dict(saved[1])
    with pytest.raises(ValueError, match="made with other scales"):
        refused.step()

    plain = LoadingItself(net.parameters(), lr=0.01)
    train(net, plain, 1)
    refused = LoadingItself(net.parameters(), lr=0.01)
    repopt.attach(refused, plan)
    refused.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="carries no fingerprint"):
        refused.step()


def test_detached_the_optimizer_is_torchs_again():
    net, plan, _ = twins()
    ours = LoadingItself(net.parameters(), lr=0.01)
    handle = repopt.attach(ours, plan)
    train(net, ours, 2)
    ours.load_state_dict(ours.state_dict())
    handle.detach()
    assert ours.param_groups[0].keys() == torch.optim.AdamW(net.parameters()).param_groups[0].keys()
    assert net[3].weight not in ours.state
    train(net, ours, 2)


def test_an_operator_that_only_one_evaluation_uses_takes_part_in_the_step():
    """As in stochastic depth."""
    net, plan, twin = twins(torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))).double())
    ours, theirs = Sharpness(net.parameters()), Sharpness(twin.parameters())
    repopt.attach(ours, plan)
    for model, optimizer in ((net, ours), (twin, theirs)):
        for _ in range(3):
            depths = iter((4, 3))
            optimizer.step(lambda model=model, depths=depths: loss_of(model[: next(depths)]).backward())
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize(
    ("rule", "words"),
    [(torch.optim.LBFGS, "keeps a flat list"), (torch.optim.SparseAdam, "takes sparse gradients")],
)
def test_rules_without_a_route_are_refused(rule, words):
    net, plan, _ = twins()
    with pytest.raises(ValueError, match=f"{rule.__name__} cannot be attached: it {words}"):
        repopt.attach(rule(net.parameters()), plan)


class Zipping(torch.optim.Optimizer):
    """Keeps its momentum by the position of the parameters, made at once or in the first step."""

    def __init__(self, params, at_once):
        super().__init__(params, {"lr": 0.05})
        self.momenta = self.zeros() if at_once else None

    def zeros(self):
        return [[torch.zeros_like(param) for param in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure=None):
        self.momenta = self.momenta or self.zeros()
        for group, momenta in zip(self.param_groups, self.momenta, strict=True):
            for param, momentum in zip(group["params"], momenta, strict=False):
                param.sub_(momentum.mul_(0.9).add_(param.grad), alpha=group["lr"])


def test_a_rule_with_tensors_by_position_is_refused_unless_it_makes_them_in_its_step():
    net, plan, twin = twins()
    with pytest.raises(ValueError, match="Zipping cannot be attached: it keeps a list of tensors, its attribute 'mome"):
        repopt.attach(Zipping(net.parameters(), at_once=True), plan)
    ours = Zipping(net.parameters(), at_once=False)
    repopt.attach(ours, plan)
    train(net, ours, 10)
    train(twin, Zipping(twin.parameters(), at_once=True), 10)
    assert apart(net, twin) <= EXACT


def test_rules_that_move_weights_outside_step_are_refused():
    net, plan, _ = twins()
    optimizer = pytorch_optimizer.ScheduleFreeSGD(net.parameters())
    with pytest.raises(ValueError, match=r"ScheduleFreeSGD moves weights outside step\(\)"):
        repopt.attach(optimizer, plan)


class Wrapping(torch.optim.Optimizer):
    """Steps the optimizer it was made from."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


class Remembering(torch.optim.Optimizer):
    """Steps the parameters it was made with, not those of its param groups."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.mine = dict(enumerate(self.param_groups[0]["params"]))

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.mine.values():
            param.sub_(param.grad, alpha=0.1)


class Bare(torch.optim.Optimizer):
    """Skips torch's constructor, as some wrappers do, and so has no hooks."""

    def __init__(self, params):
        self.param_groups = [{"params": list(params)}]
        self.state, self.defaults = {}, {}

    def step(self, closure=None):
        pass


def test_an_optimizer_that_does_not_step_its_param_groups_is_refused():
    net, plan, _ = twins()
    with pytest.raises(ValueError, match="Wrapping wraps another optimizer, its attribute 'inner': attach to that one"):
        repopt.attach(Wrapping(adamw(net.parameters())), plan)
    with pytest.raises(ValueError, match="Bare does not run torch's step hooks"):
        repopt.attach(Bare(net.parameters()), plan)
    optimizer = Remembering(net.parameters())
    repopt.attach(optimizer, plan)
    backward(net)
    with pytest.raises(RuntimeError, match="Remembering moved the weight of '0' itself"):
        optimizer.step()
