"""Gradients that are there only while a step is taken."""

import pytest
import torch
from torch import nn

from repopt.optim.kernels.gradients import PassingGradients


@pytest.fixture
def params():
    shapes = [(4, 3, 3, 3), (5,), (4, 3, 1, 1)]
    return [nn.Parameter(torch.randn(shape).contiguous(memory_format=layout_of(shape))) for shape in shapes]


def layout_of(shape):
    return torch.channels_last if len(shape) == 4 else torch.contiguous_format


def step(gradients, value):
    memory = gradients.memory().fill_(value)
    gradients.give()
    return memory


def test_each_lies_as_its_parameter_and_starts_at_16_bytes(params):
    gradients = PassingGradients(params)
    step(gradients, 1.0)
    assert [param.grad.stride() for param in params] == [param.stride() for param in params]
    starts = [param.grad.storage_offset() for param in params]
    assert starts == gradients.places
    assert all(start * param.grad.itemsize % 16 == 0 for start, param in zip(starts, params, strict=True))
    ends = [start + param.numel() for start, param in zip(starts, params, strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_the_memory_goes_and_comes_back(params):
    gradients = PassingGradients(params)
    for value in (1.0, 2.0, 3.0):
        memory = step(gradients, value)
        assert all((param.grad == value).all() for param in params)
        gradients.release()
        assert memory.untyped_storage().nbytes() == 0
        assert all(param.grad is None for param in params)


@pytest.mark.parametrize("kept_as", [lambda grad: grad, torch.Tensor.flatten, lambda grad: grad[1:]])
def test_what_a_rule_keeps_stays(params, kept_as):
    gradients = PassingGradients(params)
    step(gradients, 1.0)
    kept = kept_as(params[1].grad)
    gradients.release()
    step(gradients, 2.0)
    assert (kept == 1).all()
    assert (params[1].grad == 2).all()


def test_a_second_evaluation_in_a_step_has_memory_of_its_own(params):
    gradients = PassingGradients(params)
    step(gradients, 1.0)
    first = params[0].grad
    step(gradients, 2.0)
    assert (first == 1).all()
    assert (params[0].grad == 2).all()
