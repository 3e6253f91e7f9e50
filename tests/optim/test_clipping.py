import pytest
import torch
from torch import nn

import repopt
from side_by_side import EXACT, WAYS, apart, backward, twins


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_the_norm_is_that_of_the_real_blocks(max_norm):
    net, plan, twin = twins()
    for model in (net, twin):
        backward(model)
    ours = repopt.clip_grad_norm_(plan, max_norm)
    theirs = nn.utils.clip_grad_norm_(twin.parameters(), max_norm)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    torch.testing.assert_close(net[6].weight.grad, twin[6].weight.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("way", WAYS)
def test_it_bites_at_every_step_of_every_way(way):
    net, plan, twin = twins()
    ours, theirs = WAYS[way].start(net.parameters(), plan), WAYS[way].theirs(twin.parameters())
    for step in range(50):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, step)
            norm = (
                repopt.clip_grad_norm_(plan, 1e-3)
                if model is net
                else nn.utils.clip_grad_norm_(twin.parameters(), 1e-3)
            )
            assert norm > 1e-3
            optimizer.step()
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("way", WAYS)
def test_with_the_plain_norm_the_models_part(way):
    net, plan, twin = twins()
    ours, theirs = WAYS[way].start(net.parameters(), plan), WAYS[way].theirs(twin.parameters())
    for step in range(50):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, step)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
    assert apart(net, twin) > 1e-6


def test_a_half_precision_gradient_is_summed_in_single_precision():
    net = nn.Linear(64, 64).bfloat16()
    plan = repopt.plan(net, {"^$": [repopt.Linear()]}, scales="ones")
    net.weight.grad = torch.full_like(net.weight, 0.1)
    norm = repopt.clip_grad_norm_(plan, 1.0)
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(64 * float(torch.tensor(0.1, dtype=torch.bfloat16)), rel=1e-5)
    assert net.weight.grad.dtype == torch.bfloat16


def test_without_gradients_the_norm_is_zero_and_a_plan_of_another_model_is_suspected():
    _, plan, _ = twins()
    with pytest.warns(UserWarning, match=r"has a gradient, so nothing is clipped: .* handle\.plan") as warned:
        assert repopt.clip_grad_norm_(plan, 1.0) == 0
    assert warned[0].filename == __file__


def test_a_norm_that_is_not_finite_is_an_error_on_request():
    net, plan, _ = twins()
    net[3].weight.grad = torch.full_like(net[3].weight, float("inf"))
    with pytest.raises(RuntimeError, match="the total norm of the gradients is inf"):
        repopt.clip_grad_norm_(plan, 1.0, error_if_nonfinite=True)


def test_a_negative_norm_is_refused():
    _, plan, _ = twins()
    with pytest.raises(ValueError, match="max_norm must be a number of at least 0, not -1"):
        repopt.clip_grad_norm_(plan, -1.0)
