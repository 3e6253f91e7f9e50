"""A state that repopt saved is stepped by repopt, or by nobody."""

import copy

import pytest
import torch

import repopt
from side_by_side import WAYS, attached, backward, sgd, train, twins


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


def test_a_wrapper_that_shares_the_groups_of_an_attached_optimizer_steps():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    net, plan, _ = twins()
    wrapper = Wrapper(attached(sgd)(net.parameters(), plan))
    before = net[3].weight.detach().clone()
    backward(net)
    wrapper.step()
    assert not torch.equal(net[3].weight, before)
