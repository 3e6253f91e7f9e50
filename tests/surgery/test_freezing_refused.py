"""What freeze refuses, with a sentence, and without having changed anything."""

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv
from repopt.surgery.conversion import search_blocks
from surgery.searches import Normed, searching, sgd


def apart(search):
    """Identities without decay, which the plain model's diagonal has."""
    return torch.optim.SGD(repopt.decay_groups(search, 1e-2, identity=False), lr=0.1)


def attached(search):
    net = nn.Conv2d(3, 3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, repopt.plan(net, {"": [Conv(3)]}, scales="ones"))
    return optimizer


def partly(search):
    return torch.optim.SGD([param for name, param in search.named_parameters() if "identity" not in name], lr=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (apart, r"'depthwise' are trained with different options \(weight_decay\), .*: group them alike, as repopt"),
        (partly, "not all kernels of 'depthwise' are trained by this optimizer: give freeze the optimizer that"),
        (lambda search: torch.optim.SGD(nn.Linear(2, 2).parameters()), "not all kernels of 'stem' are trained by this"),
        (attached, "attached to a plan already: freeze all search models that it trains at once"),
        (lambda search: torch.optim.LBFGS(search.parameters()), "LBFGS cannot be attached"),
    ],
)
def test_an_optimizer_that_cannot_go_on_is_refused_and_nothing_is_changed(make, words):
    search = searching()
    optimizer = make(search)
    before = [list(group["params"]) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=words):
        repopt.freeze(search, optimizer)
    assert len(search_blocks(search)) == 5
    for group, params in zip(optimizer.param_groups, before, strict=True):
        assert list(map(id, group["params"])) == list(map(id, params))


def test_weights_that_autograd_could_not_follow_are_not_made():
    search = searching()
    optimizer = torch.optim.SGD(search.parameters(), lr=0.1)
    with torch.inference_mode(), pytest.raises(ValueError, match=r"call it outside of torch\.inference_mode"):
        repopt.freeze(search, optimizer)


def test_what_is_no_search_model_is_refused():
    net = Normed()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="this Normed holds no trained scales"):
        repopt.freeze(net, optimizer)
    with pytest.raises(TypeError, match="freeze takes a model, not a SGD"):
        repopt.freeze(optimizer, net)


def test_a_negative_max_norm_is_refused_and_nothing_is_changed():
    search = searching()
    optimizer = sgd(search)
    with pytest.raises(ValueError, match="max_norm must be a number of at least 0, not -1"):
        repopt.freeze(search, optimizer, max_norm=-1)
    assert search_blocks(search)


def test_freeze_takes_an_optimizer():
    with pytest.raises(TypeError, match="freeze takes the search model and its optimizer, not a NoneType"):
        repopt.freeze(searching(), None)
