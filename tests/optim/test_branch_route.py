"""The branch route: whatever the rule does, stepping the branches' kernels is training the real block."""

import copy
import weakref

import pytest
import pytorch_optimizer
import torch
from torch import nn

import repopt
from repopt import Conv, Identity, Linear
from repopt.optim.block_kernels import BlockKernels
from repopt.optim.rules import RULES, UNKNOWN, rule_of
from repopt.verification.cases import BRANCH_SETS, MATRIX_RULES, STOCK_RULES, OptimizerCase, mixed_sign_scales, run_row
from side_by_side import EXACT, adamw, apart, backward, loss_of, small_net, train, twins


def test_every_rule_of_the_table_that_has_a_route_is_tested():
    tested = {case.optimizer.func.__name__ for case in (*STOCK_RULES.values(), *MATRIX_RULES.values())}
    in_this_torch = {rule for rule, known in RULES.items() if known.route and hasattr(torch.optim, rule)}
    assert in_this_torch - tested == {"SGD"}


def test_a_class_of_a_known_name_that_is_not_torchs_is_unknown():
    class AdamW(torch.optim.AdamW):
        pass

    assert rule_of(AdamW([torch.zeros(1)])) is UNKNOWN


@pytest.mark.parametrize("branch_set", ["RepVGG", "finer groups", "linear"])
@pytest.mark.parametrize("rule", ["Lamb", "AdaBelief", "LARS"])
def test_optimizers_of_another_library_need_no_special_code(rule, branch_set):
    optimizer = getattr(pytorch_optimizer, rule)
    case = OptimizerCase(optimizer=lambda params: optimizer(params, lr=0.01, weight_decay=0.01))
    report = run_row(rule, case, branch_set).report
    assert report.route == "branch"
    assert report.worst <= EXACT
    assert report.differences[0].moved > 0.001


def attached_adamw(net, plan, kernels=None, **options):
    optimizer = adamw(net.parameters(), **options)
    return optimizer, repopt.attach(optimizer, plan, kernels=kernels)


def test_sgd_may_take_it_too():
    net, plan, twin = twins()
    ours = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    assert repopt.attach(ours, plan, route="branch").route == "branch"
    train(net, ours, 20)
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01), 20)
    assert apart(net, twin) <= EXACT


def test_the_optimizer_keeps_its_param_groups_and_holds_no_state_of_the_weight():
    net, plan, _ = twins()
    before = list(net.parameters())
    ours, _ = attached_adamw(net, plan)
    train(net, ours, 3)
    assert all(a is b for a, b in zip(ours.param_groups[0]["params"], before, strict=True))
    assert {param for param, held in ours.state.items() if held} == set(before) - {net[0].weight, net[3].weight}


def test_an_exception_inside_a_step_leaves_nothing_swapped():
    net, plan, _ = twins()
    before = list(net.parameters())
    ours, _ = attached_adamw(net, plan)
    train(net, ours, 2)
    ours.param_groups[0]["betas"] = None
    backward(net)
    with pytest.raises(TypeError):
        ours.step()
    assert all(a is b for a, b in zip(ours.param_groups[0]["params"], before, strict=True))
    ours.state_dict()
    ours.param_groups[0]["betas"] = (0.9, 0.999)
    train(net, ours, 2)


def test_an_exception_inside_a_closure_leaves_nothing_swapped():
    net, plan, twin = twins()
    ours, _ = attached_adamw(net, plan)

    def broken():
        raise KeyError("the data ran out")

    with pytest.raises(KeyError, match="the data ran out"):
        ours.step(broken)
    train(net, ours, 20)
    train(twin, adamw(twin.parameters()), 20)
    assert apart(net, twin) <= EXACT


def test_rules_that_look_at_the_weights_start_from_the_blocks_own_kernels():
    net = nn.Conv2d(6, 6, 3, padding=1, bias=False).double()
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    kernels = plan.init_()
    x = torch.randn(4, 6, 5, 5, dtype=torch.float64)
    outputs = []
    for given in (kernels, None):
        copied = copy.deepcopy(net)
        optimizer = torch.optim.Adafactor(copied.parameters(), lr=0.1)
        repopt.attach(optimizer, plan.on(copied), kernels=given)
        for _ in range(10):
            optimizer.zero_grad()
            copied(x).square().mean().backward()
            optimizer.step()
        outputs.append(copied(x))
    twin = repopt.csla_model(net, plan, kernels)
    theirs = torch.optim.Adafactor(twin.parameters(), lr=0.1)
    for _ in range(10):
        theirs.zero_grad()
        twin(x).square().mean().backward()
        theirs.step()
    torch.testing.assert_close(outputs[0], twin(x), rtol=1e-12, atol=1e-12)
    assert (outputs[1] - twin(x)).abs().max() > 1e-6


def test_a_write_to_the_weight_from_outside_is_spread_over_the_branches():
    net, plan, _ = twins()
    ours, _ = attached_adamw(net, plan)
    train(net, ours, 3)
    with torch.no_grad():
        net[3].weight.mul_(0.5)
    written = net[3].weight.detach().clone()
    for group in ours.param_groups:
        group["lr"] = 0.0
    backward(net)
    ours.step()
    torch.testing.assert_close(net[3].weight.detach(), written, rtol=1e-12, atol=1e-14)


def test_a_weight_that_no_block_has_is_refused_at_attach():
    net = nn.Conv2d(4, 4, 3, padding=1)
    plan = repopt.plan(net, {"^$": [Conv(1), Identity()]}, scales="ones")
    optimizer = torch.optim.AdamW(net.parameters())
    with pytest.raises(ValueError, match="the weight of '' is not zero at entries that no branch"):
        repopt.attach(optimizer, plan)
    plan.init_()
    repopt.attach(optimizer, plan)


def test_kernels_that_do_not_fit_are_refused():
    net, plan, _ = twins()
    with pytest.raises(ValueError, match="the kernels lack branch 'conv3x3' of operator '0'"):
        attached_adamw(net, plan, kernels={})


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch is older than Muon, which came with 2.9")
def test_muon_and_an_identity_do_not_go_together():
    net = nn.Sequential(nn.Linear(4, 4, bias=False))
    plan = repopt.plan(net, {"0": [Linear(), Identity()]}, scales="ones")
    with pytest.raises(ValueError, match="Muon takes matrices only, and the kernel of branch 'identity' of '0' has 1"):
        repopt.attach(torch.optim.Muon(net.parameters()), plan)


def test_detached_the_optimizer_starts_over_as_a_plain_one():
    net, plan, _ = twins()
    for rule in (torch.optim.Adagrad, torch.optim.AdamW):
        optimizer = rule(net.parameters(), lr=0.01)
        keys = set(optimizer.state_dict()["param_groups"][0])
        handle = repopt.attach(optimizer, plan)
        train(net, optimizer, 2)
        handle.detach()
        assert set(optimizer.state_dict()["param_groups"][0]) == keys
        train(net, optimizer, 2)
        assert net[3].weight in optimizer.state


def test_the_optimizer_holds_a_ninth_more_than_for_the_weight_alone():
    """RepVGG's branches: 3x3, 1x1 and an identity take 1.11 kernels, and each of AdamW's moments 0.11 more."""
    net = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    plan = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, scales="ones")
    plan.init_()
    optimizer = torch.optim.AdamW(net.parameters())
    handle = repopt.attach(optimizer, plan)
    assert handle.nbytes / net.weight.nbytes == pytest.approx(1 + 1 / 9 + 1 / (9 * 64))
    net(torch.ones(1, 64, 4, 4)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()["param_groups"][0]["repopt_branches"][""]
    moments = sum(its["state"]["exp_avg"].nbytes for its in state.values())
    assert moments == handle.nbytes


def test_kernels_that_were_given_are_let_go_where_their_block_starts():
    net, plan, _ = twins()
    kernels = plan.init_()
    given = [weakref.ref(kernel) for own in kernels.values() for kernel in own.values()]
    net[3].requires_grad_(False)
    optimizer = adamw(net[0].parameters())
    handle = repopt.attach(optimizer, plan, kernels=kernels)
    everything = sum(kernel.nbytes for own in kernels.values() for kernel in own.values())
    del kernels
    assert sum(each() is not None for each in given) == len(plan.blocks["3"].branches)
    assert handle.nbytes == everything
    net[3].requires_grad_(True)
    optimizer.add_param_group({"params": list(net[3].parameters())})
    train(net, optimizer, 1)
    assert not any(each() is not None for each in given)
    assert handle.nbytes == everything


def test_a_half_precision_weight_is_stepped_in_its_own_precision():
    net = small_net().float().bfloat16()
    bare = repopt.plan(net, {"0|3": [Conv(3), Conv(1), Identity()]}, scales="ones")
    bare.init_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    repopt.attach(optimizer, bare)
    before = net[3].weight.detach().clone()
    net(torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    assert net[3].weight.dtype == torch.bfloat16
    assert not torch.equal(net[3].weight, before)


def test_a_write_that_torch_does_not_count_is_overwritten():
    """The docs say so: no step compares values."""
    net, plan, _ = twins()
    ours, _ = attached_adamw(net, plan)
    train(net, ours, 2)
    before = net[3].weight.detach().clone()
    net[3].weight.data.mul_(0.5)
    for group in ours.param_groups:
        group["lr"] = 0.0
    backward(net)
    ours.step()
    torch.testing.assert_close(net[3].weight.detach(), before, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_step_takes_its_own_write_for_nobody_elses(layout, monkeypatch):
    case = BRANCH_SETS["finer groups"]
    net = nn.Sequential(case.operator()).to(memory_format=layout)
    bare = repopt.plan(net, {"0": case.branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    plan.init_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    repopt.attach(optimizer, plan)
    followed = []
    follow = BlockKernels.follow_
    monkeypatch.setattr(BlockKernels, "follow_", lambda *args: (followed.append(1), follow(*args)))
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.randn(2, 8, 5, 5)).square().mean().backward()
        optimizer.step()
    assert len(followed) == 1  # before the first step, when nobody knows who wrote the weight


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_a_compiled_step_with_two_operators():
    net, plan, twin = twins()
    ours, _ = attached_adamw(net, plan)
    theirs = adamw(twin.parameters())
    for model, optimizer in ((net, ours), (twin, theirs)):
        step = torch.compile(optimizer.step, backend="eager")
        for number in range(6):
            optimizer.zero_grad()
            backward(model, number)
            step()
    assert apart(net, twin) <= EXACT


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_is_read_only_and_may_be_stepped_twice(fused):
    net, plan, twin = twins()
    ours, _ = attached_adamw(net, plan, fused=fused)
    theirs = adamw(twin.parameters(), fused=fused)
    for number in range(5):
        backward(net, number)
        backward(twin, number)
        grads = {param: (param.grad, param.grad.clone()) for param in net.parameters()}
        for _ in range(2):
            ours.step()
            theirs.step()
        for param, (grad, values) in grads.items():
            assert param.grad is grad
            assert torch.equal(grad, values)
        ours.zero_grad()
        theirs.zero_grad()
    assert apart(net, twin) <= EXACT


def test_an_operator_left_out_of_some_steps_stays_the_blocks():
    net, plan, twin = twins()
    ours, _ = attached_adamw(net, plan)
    theirs = adamw(twin.parameters())
    for number in range(12):
        for model, optimizer in ((net, ours), (twin, theirs)):
            optimizer.zero_grad()
            backward(model, number)
            for param in model[3 if number % 3 else 0].parameters():
                param.grad = None
            optimizer.step()
    assert apart(net, twin) <= EXACT


def test_a_state_saved_when_kernels_were_always_contiguous_goes_on():
    """Kernels have their channels last now where the weight has; a fused step wants all strides alike."""
    whole, plan, _ = twins(small_net(torch.channels_last))
    optimizer, _ = attached_adamw(whole, plan, fused=True)
    train(whole, optimizer, 5)
    net = copy.deepcopy(whole)
    saved = contiguous(copy.deepcopy(optimizer.state_dict()))
    resumed, _ = attached_adamw(net, plan.on(net), fused=True)
    resumed.load_state_dict(saved)
    train(whole, optimizer, 5, first=5)
    train(net, resumed, 5, first=5)
    assert torch.equal(net[3].weight, whole[3].weight)


def contiguous(value):
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    if isinstance(value, dict):
        return {key: contiguous(each) for key, each in value.items()}
    return [contiguous(each) for each in value] if isinstance(value, list) else value


def test_a_model_whose_layout_changes_after_attach_is_trained_on():
    net, plan, twin = twins()
    ours, _ = attached_adamw(net, plan)
    theirs = adamw(twin.parameters())
    train(net, ours, 5)
    train(twin, theirs, 5)
    net.to(memory_format=torch.channels_last)
    train(net, ours, 5, first=5)
    train(twin, theirs, 5, first=5)
    assert apart(net, twin) <= EXACT


def test_kernels_given_for_an_operator_that_is_thawed_later_are_used():
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)).double()
    bare = repopt.plan(net, {"^0$": [Conv(3), Conv(1), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    kernels = plan.init_()
    twin = repopt.csla_model(net, plan, kernels)
    net[0].weight.requires_grad_(False)
    ours = torch.optim.Adam(net[1].parameters(), lr=0.01, weight_decay=0.3)
    repopt.attach(ours, plan, kernels=kernels)
    net[0].weight.requires_grad_(True)
    ours.add_param_group({"params": list(net[0].parameters())})
    theirs = torch.optim.Adam(twin.parameters(), lr=0.01, weight_decay=0.3)
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    for model, optimizer in ((net, ours), (twin, theirs)):
        for _ in range(10):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(net(x), twin(x), rtol=1e-12, atol=1e-12)


def test_a_model_moved_to_another_precision_is_refused():
    net, plan, _ = twins()
    ours, _ = attached_adamw(net, plan)
    net.float()
    net(torch.randn(4, 3, 8, 8)).square().mean().backward()
    with pytest.raises(RuntimeError, match="the weight of '0' was moved or converted since attach"):
        ours.step()


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_fused_step_under_grad_scaler_leaves_all_gradients_unscaled(max_norm):
    net, plan, _ = twins()
    ours = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
    repopt.attach(ours, plan, max_norm=max_norm)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(loss_of(net)).backward()
    before = [param.grad / 2.0**10 for param in net.parameters()]
    scaler.step(ours)
    for param, grad in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(param.grad, grad)
