"""One call for plan, init_ and attach; and what attach says where init_ was forgotten."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import repopt
from repopt import Conv, Linear
from repopt.models import plain_from_repvgg
from repopt.optim.attachment import attach_as_is, look_as_torch_drew_them
from repopt.plans.presets import PRESETS
from settled import settle


def small_net(**options):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, **options),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, **options),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4, **options),
    )


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def trained(net, optimizer, steps=3):
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.arange(8) % 4).backward()
        optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("init", [True, False])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("make", [sgd, lambda net: torch.optim.Adam(net.parameters(), weight_decay=0.1)])
def test_one_call_is_plan_init_and_attach(make, preset, init):
    """Adam with coupled L2 looks at the kernels that init_ drew, so these are passed on, too."""
    net = small_net()
    twin = copy.deepcopy(net)
    optimizer, other = make(net), make(twin)
    torch.manual_seed(3)
    handle = repopt.reparameterize(net, optimizer, preset, init=init)
    torch.manual_seed(3)
    plan = repopt.plan(twin, preset, "depth")
    attach_as_is(other, plan, kernels=plan.init_() if init else None)
    assert handle.plan.operators == ("0", "2")
    assert handle.exact
    ours, theirs = trained(net, optimizer), trained(twin, other)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_a_model_declares_is_taken_where_no_branches_are_wanted():
    model = repopt.create_model("repopt_vgg_nano")
    handle = repopt.reparameterize(model, sgd(model), None, "ones", init=True)
    assert handle.plan.operators == repopt.plan(model).operators


def test_init_has_no_default_and_is_no_guess():
    net = small_net()
    with pytest.raises(TypeError, match="'init'"):
        repopt.reparameterize(net, sgd(net))
    with pytest.raises(TypeError, match=r"init is True \(draw .*\) or False \(keep .*\), not 'no'"):
        repopt.reparameterize(net, sgd(net), init="no")


@pytest.mark.parametrize(
    "make",
    [
        lambda net: torch.optim.LBFGS(net.parameters()),
        lambda net: torch.optim.SGD(net[0].parameters(), lr=0.1),
        lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),  # stepped below: a state of other training
    ],
)
def test_where_it_cannot_attach_the_weights_stay(make):
    net = small_net()
    optimizer = make(net)
    if isinstance(optimizer, torch.optim.SGD):
        trained(net, optimizer)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"cannot be attached|does not hold the weight|carries no fingerprint"):
        repopt.reparameterize(net, optimizer, init=True)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_attach_says_that_init_was_forgotten():
    net = small_net()
    plan = repopt.plan(net, "repvgg", "depth")
    with pytest.warns(UserWarning, match=r"look as torch drew them.*call plan\.init_\(\)") as caught:
        repopt.attach(sgd(net), plan)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def drawn(preset, scales, **options):
    net = small_net(**options)
    return net, repopt.plan(net, preset, scales)


def test_torchs_own_draws_are_known_by_their_spread():
    """Of any precision, size of network and seed."""
    for seed in range(20):
        torch.manual_seed(seed)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            assert look_as_torch_drew_them(drawn("repvgg", "depth", dtype=dtype)[1])
        deep = nn.Sequential(*(nn.Conv2d(8, 8, 3, groups=groups) for groups in (1, 2, 4, 8) * 8))
        assert look_as_torch_drew_them(repopt.plan(deep, "acnet", "ones"))
        assert look_as_torch_drew_them(repopt.plan(nn.Linear(40, 40), {"^$": [Linear(), Linear()]}, "ones"))


def initialized(start):
    """A small net whose weights started in this way, and its plan."""
    net, plan = drawn("acnet" if start.endswith("acnet") else "repvgg", "ones" if "ones" in start else "depth")
    convs = [module for module in net if isinstance(module, nn.Conv2d)]
    if start.startswith("init_"):
        plan.init_(kernel="paper" if "paper" in start else "authors")
    elif start == "dirac":
        repopt.dirac_init_(net, plan)
    elif start == "trained":
        trained(net, sgd(net), steps=20)
    else:
        for conv in convs:
            getattr(nn.init, start)(conv.weight)
    return net, plan


@pytest.mark.parametrize(
    "start",
    [
        *("init_", "init_, ones", "init_, paper", "init_, acnet", "init_, ones, acnet", "dirac", "trained"),
        *("kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "orthogonal_", "trunc_normal_"),
        *("zeros_", "dirac_"),
    ],
)
def test_other_weights_are_not_taken_for_torchs_draws(start):
    for seed in range(10):
        torch.manual_seed(seed)
        net, plan = initialized(start)
        repopt.attach(sgd(net), plan)  # warnings are errors here


@pytest.mark.parametrize("draw", [torch.randn_like, lambda weight: torch.randn_like(weight).sign()])
def test_the_same_standard_deviation_is_not_enough(draw):
    """A bell, whose tails reach beyond torch's bound, and two values, which stay far from it."""
    net, plan = drawn("repvgg", "depth")
    with torch.no_grad():
        for conv in (net[0], net[2]):
            conv.weight.copy_(draw(conv.weight) / (3 * conv.weight[0].numel()) ** 0.5)
    repopt.attach(sgd(net), plan)


def test_init_draws_some_blocks_as_torch_does_and_nothing_is_said_of_these():
    """One branch that covers the kernel, alone or beside branches of scale 0."""
    for scales in ({"conv3x3": 1.0}, {"conv3x3": 1.0, "conv1x1": 0.0}):
        net = nn.Conv2d(16, 16, 3, padding=1)
        plan = repopt.plan(net, {"^$": [Conv(3), Conv(1)][: len(scales)]}, {"": scales})
        plan.init_()
        repopt.attach(sgd(net), plan)


def test_weights_that_come_from_elsewhere_are_not_warned_of():
    """A converted RepVGG, a search that goes on, verify, and a call that says that the weights are to stay."""
    plain = plain_from_repvgg(settle(repopt.create_model("repvgg_nano")))
    repopt.attach(sgd(plain), repopt.plan(plain, scales="ones"))
    net, plan = drawn("repvgg", "depth")
    search = repopt.search_model(net, plan)
    repopt.freeze(search, sgd(search))
    assert repopt.verify(net, plan, lambda params: torch.optim.SGD(params, lr=0.01), steps=2).passed
    repopt.reparameterize(net, sgd(net), init=False)
    meta, plan = drawn("repvgg", "depth", device="meta")
    repopt.attach(sgd(meta), plan)


def test_a_few_weights_are_no_evidence():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3))
    repopt.attach(sgd(net), repopt.plan(net, "repvgg", "ones"))
