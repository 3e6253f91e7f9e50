"""A search model that is frozen, and the plain model that it becomes, take the same steps from then on."""

import copy
import itertools

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.surgery.conversion import search_blocks
from surgery.searches import BRANCHES, DAMPED, NESTEROV, Normed, searching, sgd


def take_steps(model, optimizer, steps, size=32, after=lambda: None):
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, size, size, generator=draw, dtype=torch.float64)
        loss = nn.functional.cross_entropy(model(x), torch.randint(5, (8,), generator=draw))
        optimizer.zero_grad()
        (-loss if optimizer.param_groups[0].get("maximize") else loss).backward()
        optimizer.step()
        after()


def without_scales(search, optimizer):
    """A copy of both, whose scales are no longer trained: what the plain model must equal."""
    search, optimizer = copy.deepcopy((search, optimizer))
    optimizer.zero_grad()
    for block in search_blocks(search).values():
        block.scales.requires_grad_(False)
    return search, optimizer


def assert_equal(plain, frozen):
    """The weights of the plain model are those of the frozen search model's branches, merged."""
    found, wanted = plain.state_dict(), repopt.merge(frozen).state_dict()
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert float((found[name] - value).abs().max()) <= 1e-12 * max(1.0, float(value.abs().max())), name


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("own", {**NESTEROV, "lr": 0.05}),
        ("own", {**DAMPED, "lr": 0.05}),
        ("vgg", NESTEROV),
        pytest.param("vgg", DAMPED, marks=pytest.mark.slow),
        pytest.param("ghost", {**NESTEROV, "lr": 0.001}, marks=pytest.mark.slow),
        pytest.param("ghost", {**DAMPED, "lr": 0.001}, marks=pytest.mark.slow),
    ],
)
def test_thirty_steps_after_the_freeze_the_plain_model_is_the_search_model_with_fixed_scales(kind, options):
    size = 32 if kind == "own" else 64  # a norm over a few values only would magnify rounding
    search = searching(kind)
    optimizer = sgd(search, **options)
    take_steps(search, optimizer, range(3), size)
    frozen, reference = without_scales(search, optimizer)
    scales = repopt.extract_scales(search)
    model, same, handle = repopt.freeze(search, optimizer)
    assert model is search
    assert same is optimizer
    assert (handle.route, handle.exact, handle.plan.scales) == ("grad", True, scales)
    assert_equal(model, frozen)
    take_steps(model, optimizer, range(3, 33), size)
    take_steps(frozen, reference, range(3, 33), size)
    assert_equal(model, frozen)


@pytest.mark.parametrize(
    ("rule", "route"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.05), "grad"),  # without a momentum there is no state
        (lambda params: torch.optim.ASGD(params, lr=0.05, t0=2, weight_decay=1e-2), "grad"),
        (lambda params: torch.optim.AdamW(params, lr=1e-3, amsgrad=True), "branch"),
        (lambda params: torch.optim.Adam(params, lr=1e-3, weight_decay=1e-2, fused=True), "branch"),
        (lambda params: torch.optim.RAdam(params, lr=1e-3), "branch"),
    ],
    ids=["sgd", "asgd", "adamw", "adam", "radam"],
)
def test_every_rule_goes_on_as_it_would_have(rule, route):
    """Those that are not linear keep the state of each branch, second moments included."""
    search = searching()
    optimizer = rule(search.parameters())
    take_steps(search, optimizer, range(8))
    frozen, reference = without_scales(search, optimizer)
    model, _, handle = repopt.freeze(search, optimizer)
    assert (handle.route, handle.exact) == (route, True)
    take_steps(model, optimizer, range(8, 38))
    take_steps(frozen, reference, range(8, 38))
    assert_equal(model, frozen)


@pytest.mark.parametrize("rule", [sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)])
def test_from_the_freeze_on_the_step_can_clip_by_the_norm_of_the_branches(rule):
    search = searching()
    optimizer = rule(search)
    take_steps(search, optimizer, range(3))
    frozen, reference = without_scales(search, optimizer)
    reference.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(frozen.parameters(), 0.1) and None)
    model, optimizer, _ = repopt.freeze(search, optimizer, max_norm=0.1)
    take_steps(model, optimizer, range(3, 13))
    take_steps(frozen, reference, range(3, 13))
    assert_equal(model, frozen)


def test_a_moving_average_is_merged_and_goes_on():
    search = searching()
    optimizer = sgd(search)
    average = torch.optim.swa_utils.AveragedModel(search)
    take_steps(search, optimizer, range(3), after=lambda: average.update_parameters(search))
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    before = average.module.eval()(images)
    model, optimizer, _ = repopt.freeze(search, optimizer)
    average.module = repopt.merge(average.module)
    torch.testing.assert_close(average.module(images), before)

    expected, steps = [param.clone() for param in average.module.parameters()], itertools.count(4)

    @torch.no_grad()
    def update():
        average.update_parameters(model)
        share = 1 / next(steps)
        for mean, param in zip(expected, model.parameters(), strict=True):
            mean.lerp_(param, share)

    take_steps(model, optimizer, range(3, 6), after=update)
    torch.testing.assert_close(list(average.module.parameters()), expected)


def test_an_optimizer_whose_state_was_loaded_can_go_on():
    """torch then adds an option to its defaults that its groups lack, here of one that has no such option."""
    search = searching()
    optimizer = torch.optim.Adafactor(search.parameters(), lr=1e-3)
    take_steps(search, optimizer, range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    assert set(optimizer.defaults) - set(optimizer.param_groups[0])
    model, _, _ = repopt.freeze(search, optimizer)
    take_steps(model, optimizer, range(2, 4))


def test_a_model_that_is_one_operator_can_be_frozen():
    """The block is the whole model, so another module takes its place."""
    net = nn.Conv2d(3, 3, 3, padding=1).double()
    search = repopt.search_model(net, repopt.plan(net, {"^$": [Conv(3), Identity()]}))
    optimizer = torch.optim.SGD(search.named_parameters(), lr=0.1, **NESTEROV)
    take_steps(lambda x: search(x).flatten(1), optimizer, range(3))
    frozen, reference = without_scales(search, optimizer)
    model, optimizer, _ = repopt.freeze(search, optimizer)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    take_steps(lambda x: model(x).flatten(1), optimizer, range(3, 33))
    take_steps(lambda x: frozen(x).flatten(1), reference, range(3, 33))
    assert_equal(model, frozen)


def test_a_model_that_was_never_stepped_can_be_frozen():
    search = searching()
    optimizer = sgd(search)
    frozen, reference = without_scales(search, optimizer)
    take_steps(repopt.freeze(search, optimizer)[0], optimizer, range(5))
    take_steps(frozen, reference, range(5))
    assert_equal(search, frozen)


@pytest.mark.parametrize("given", ["the model", "what torch.compile returned"])
def test_a_compiled_model_is_compiled_again(given):
    search = searching()
    optimizer = sgd(search)
    compiled = torch.compile(search, backend="eager")
    take_steps(compiled, optimizer, range(2))
    frozen, reference = without_scales(search, optimizer)
    model, _, handle = repopt.freeze(search if given == "the model" else compiled, optimizer)
    assert model is (search if given == "the model" else compiled)
    assert handle.plan.operators == tuple(BRANCHES)
    take_steps(compiled, optimizer, range(2, 8))
    take_steps(frozen, reference, range(2, 8))
    assert_equal(search, frozen)


def test_schedulers_and_a_grad_scaler_go_on_and_scales_with_a_group_of_their_own_leave_it_empty():
    search = searching()
    scales = [scale for block in search_blocks(search).values() for scale in block.scales.values()]
    ours = set(map(id, scales))
    groups = repopt.decay_groups(search, 1e-2)
    for group in groups:
        group["params"] = [param for param in group["params"] if id(param) not in ours]
    optimizer = torch.optim.SGD([{"params": scales, "lr": 0.1}, *groups], lr=0.05, **NESTEROV)
    schedule, scaler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.2, 0.1, 0.1], 40), torch.amp.GradScaler("cpu")

    def step_scaled(model, optimizer, schedule, steps):
        for step in steps:
            x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

    step_scaled(search, optimizer, schedule, range(5))
    frozen, reference, follower = copy.deepcopy((search, optimizer, schedule))
    for block in search_blocks(frozen).values():
        block.scales.requires_grad_(False)
    model, optimizer, _ = repopt.freeze(search, optimizer)
    step_scaled(model, optimizer, schedule, range(5, 35))
    step_scaled(frozen, reference, follower, range(5, 35))
    assert [group["params"] for group in optimizer.param_groups[:1]] == [[]]
    assert schedule.get_last_lr() == follower.get_last_lr()
    assert [group["lr"] for group in optimizer.param_groups] == schedule.get_last_lr()
    assert_equal(model, frozen)


@pytest.mark.parametrize(
    "rule",
    [
        sgd,
        lambda model: torch.optim.AdamW(model.named_parameters(), lr=1e-3),
        lambda model: torch.optim.AdamW(repopt.decay_groups(model, 1e-2), lr=1e-3),  # a group without operators
    ],
)
def test_what_was_saved_after_the_freeze_goes_on_in_a_plain_model(rule, tmp_path):
    """Bit for bit, with the optimizer that a plain model gets, and the scales from their file."""
    search = searching()
    optimizer = rule(search)
    take_steps(search, optimizer, range(3))
    model, optimizer, handle = repopt.freeze(search, optimizer)
    take_steps(model, optimizer, range(3, 6))
    handle.plan.scales.save(tmp_path / "scales.safetensors")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")
    take_steps(model, optimizer, range(6, 12))

    plain = Normed().double()
    plan = repopt.plan(plain, BRANCHES, scales=tmp_path / "scales.safetensors")
    resumed = rule(plain)
    assert [group.get("param_names") for group in resumed.param_groups] == [
        group.get("param_names") for group in optimizer.param_groups
    ]
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    plain.load_state_dict(saved["model"])
    repopt.attach(resumed, plan)
    resumed.load_state_dict(saved["optimizer"])
    take_steps(plain, resumed, range(6, 12))
    for name, weight in model.state_dict().items():
        assert torch.equal(plain.state_dict()[name], weight), name


def test_an_operator_whose_kernels_are_not_trained_stays_so():
    search = searching()
    search.grouped.requires_grad_(False)
    optimizer = sgd(search)
    model, _, _ = repopt.freeze(search, optimizer)
    before = model.grouped.weight.clone()
    take_steps(model, optimizer, range(3))
    assert not model.grouped.weight.requires_grad
    assert torch.equal(model.grouped.weight, before)


@pytest.mark.parametrize("make", [lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), torch.optim.AdamW])
def test_where_only_the_scales_are_trained_nothing_of_the_operator_is_afterwards(make):
    search = searching()
    for kernel in search.stem.kernels.values():
        kernel.requires_grad_(False)
    optimizer = make(repopt.decay_groups(search, 1e-2))
    take_steps(search, optimizer, range(3))
    search.eval()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    expected = search(x)
    model, optimizer, _ = repopt.freeze(search, optimizer)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    assert not model.stem.weight.requires_grad
    assert all(param is not model.stem.weight for group in optimizer.param_groups for param in group["params"])


def test_a_bias_of_two_operators_leaves_the_weights_in_the_plain_models_order():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    search = repopt.search_model(net, repopt.plan(net, {".": [Linear(), Identity()]}))
    search[1].bias = search[0].bias
    model, optimizer, _ = repopt.freeze(search, torch.optim.SGD(search.parameters(), lr=0.1))
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, model.parameters()))


def test_two_search_models_of_one_optimizer_are_frozen_at_once():
    both = nn.ModuleList([searching(), searching()])
    optimizer = torch.optim.SGD(repopt.decay_groups(both, 1e-2), lr=0.1)
    plain, _, handle = repopt.freeze(both, optimizer)
    assert {id(weight) for weight in plain.parameters()} == {
        id(each) for group in optimizer.param_groups for each in group["params"]
    }
    assert len(handle.plan.operators) == 10
