"""A state that repopt saved is stepped by repopt, or by nobody."""

import copy
import subprocess
import sys

import pytest
import torch

import repopt
from side_by_side import WAYS, attached, sgd, train, twins


@pytest.mark.parametrize("name", WAYS)
def test_a_plain_optimizer_does_not_step_a_state_that_repopt_saved(name):
    net, plan, _ = twins()
    ours = WAYS[name].start(net.parameters(), plan)
    train(net, ours, 2)
    plain = WAYS[name].theirs(net.parameters())
    plain.load_state_dict(copy.deepcopy(ours.state_dict()))
    before = net[3].weight.detach().clone()
    for forgotten in (plain, copy.deepcopy(plain)):
        with pytest.raises(RuntimeError, match=r"not attached to a plan, .* call repopt\.attach"):
            train(net, forgotten, 1)
    assert torch.equal(net[3].weight, before)
    train(net, ours, 1)
    if name != "closed":  # its route is another than that of the stock optimizer
        repopt.attach(plain, plan)
        train(net, plain, 1)


def test_a_detached_optimizer_and_its_copies_step_plainly():
    net, plan, _ = twins()
    optimizer = sgd(net.parameters())
    handle = repopt.attach(optimizer, plan)
    train(net, optimizer, 2)
    handle.detach()
    fresh = sgd(net.parameters())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for plain in (optimizer, copy.deepcopy(optimizer), fresh):
        train(net, plain, 1)


class Wrapper(torch.optim.Optimizer):
    """Steps other optimizers, which it keeps out of sight of a search of attributes, through their own groups."""

    def __init__(self, *inner):
        self.inner = {"all": list(inner)}
        super().__init__([group for each in inner for group in each.param_groups], {})

    def step(self, closure=None):
        for each in self.inner["all"]:
            each.step(closure)


@pytest.mark.parametrize("attached_first", [True, False])
def test_a_wrapper_of_an_attached_optimizer_and_another_steps(attached_first):
    net, plan, _ = twins()
    planned = attached(sgd)(net[:4].parameters(), plan)
    inner = [planned, sgd(net[6].parameters())]
    wrapper = Wrapper(*(inner if attached_first else inner[::-1]))
    before = net[3].weight.detach().clone()
    train(net, wrapper, 1)
    assert not torch.equal(net[3].weight, before)
    planned.load_state_dict(copy.deepcopy(planned.state_dict()))  # it has new groups now, the wrapper the old ones
    train(net, wrapper, 1)


def test_a_wrapper_of_a_plain_optimizer_that_holds_a_state_of_repopt_does_not_step():
    net, plan, _ = twins()
    net_now, _, _ = twins()
    plain = sgd(net_now.parameters())
    plain.load_state_dict(attached(sgd)(net.parameters(), plan).state_dict())
    with pytest.raises(RuntimeError, match="Wrapper holds a state that repopt saved but is not attached"):
        train(net_now, Wrapper(plain), 1)


def test_every_group_is_looked_at():
    net, plan, _ = twins()
    ours = attached(sgd)([{"params": net[6].parameters()}, {"params": net[:4].parameters()}], plan)
    plain = sgd([{"params": net[6].parameters()}, {"params": net[:4].parameters()}])
    plain.param_groups[1].update(repopt=ours.state_dict()["param_groups"][1]["repopt"])
    with pytest.raises(RuntimeError, match="not attached to a plan"):
        train(net, plain, 1)


def test_a_plain_optimizer_made_with_the_groups_of_an_attached_one_does_not_step():
    net, plan, _ = twins()
    ours = attached(sgd)(net.parameters(), plan)
    with pytest.raises(RuntimeError, match="not attached to a plan"):
        train(net, torch.optim.AdamW(ours.param_groups), 1)


def test_the_guard_begins_with_the_first_name_of_repopt_that_is_used():
    asked = (
        "import sys, repopt; a = set(sys.modules); repopt.Conv; assert 'repopt.plans.stamps' in set(sys.modules) - a"
    )
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120, capture_output=True)
