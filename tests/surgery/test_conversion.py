import copy
import pickle
from collections import deque
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import repopt
from repopt import Conv, Identity, Linear
from repopt.plans.copying import copied
from repopt.surgery.blocks import CSLABlock, LinearAdditionBlock
from repopt.surgery.conversion import csla_blocks, csla_model, search_model
from repopt.verification.cases import BRANCH_SETS
from surgery.nets import planned, small_net


def random_input(operator, batch=2):
    size = max(8, *(2 * taps for taps in operator.kernel_size), 8) if operator.dims else None
    return torch.randn(batch, operator.in_channels, *[size] * operator.dims, dtype=torch.float64)


@pytest.mark.parametrize("own_kernels", [True, False])
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_the_real_block_computes_what_the_operator_computes(branch_set, own_kernels):
    case = BRANCH_SETS[branch_set]
    net = case.operator().double()
    plan = planned(net, {"^$": case.branches})
    kernels = plan.init_()
    twin = csla_model(net, plan, kernels if own_kernels else None)
    assert isinstance(twin, CSLABlock)
    x = random_input(plan.blocks[""].operator)
    torch.testing.assert_close(twin(x), net(x), rtol=1e-12, atol=1e-12)


def test_the_block_writes_its_branches_out():
    """For RepVGG's three branches: s * conv3x3(x) + t * conv1x1(x) + w * x."""
    net = nn.Conv2d(4, 4, 3, padding=1, bias=False).double()
    plan = planned(net, {"^$": [Conv(3), Conv(1), Identity()]})
    kernels = plan.init_()[""]
    scales = plan.constants("")
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    conv = torch.nn.functional.conv2d
    expected = (
        scales["conv3x3"].view(-1, 1, 1) * conv(x, kernels["conv3x3"], padding=1)
        + scales["conv1x1"].view(-1, 1, 1) * conv(x, kernels["conv1x1"])
        + kernels["identity"].view(-1, 1, 1) * x
    )
    twin = csla_model(net, plan, {"": kernels})
    torch.testing.assert_close(twin(x), expected)
    assert {name for name, _ in twin.named_parameters()} == {f"kernels.{branch}" for branch in scales}
    assert all(not buffer.requires_grad for buffer in twin.buffers())


def test_the_twin_is_a_copy_and_the_rest_of_the_model_is_taken_over():
    net = small_net().eval()
    plan = planned(net, {"0|3": [Conv(3), Conv(1), Identity()]})
    twin = csla_model(net, plan)
    assert set(csla_blocks(twin)) == {"0", "3"}
    assert isinstance(net[0], nn.Conv2d)
    assert torch.equal(twin[0].bias, net[0].bias)
    assert twin[0].bias is not net[0].bias
    assert not any(module.training for module in twin.modules())


def test_merging_gives_the_plain_model_back():
    net = small_net()
    net[3].weight.requires_grad_(False)
    plan = planned(net, {"0|3": [Conv(3), Conv(1), Identity()]})
    merged = repopt.merge(csla_model(net, plan))
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(merged(x), net(x), rtol=1e-12, atol=1e-12)
    assert list(merged.state_dict()) == list(net.state_dict())
    assert [param.requires_grad for param in merged.parameters()] == [p.requires_grad for p in net.parameters()]
    assert isinstance(merged[0], nn.Conv2d)
    assert repr(merged) == repr(net)


def test_a_single_operator_is_replaced_and_merged_as_a_model():
    net = nn.Conv2d(4, 4, 3, padding=1)
    plan = planned(net, {"^$": [Conv(3), Conv(1), Identity()]})
    merged = repopt.merge(csla_model(net, plan))
    torch.testing.assert_close(merged.weight, net.weight)


def test_an_operator_reached_under_two_names_is_replaced_under_both():
    net = small_net()
    net.add_module("alias", net[0])
    plan = planned(net, {"^0$": [Conv(3), Conv(1)]})
    twin = csla_model(net, plan)
    assert twin.alias is twin[0]
    assert isinstance(twin.alias, CSLABlock)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ({}, "the kernels lack branch 'conv3x3' of operator '0'"),
        ({"0": {"conv3x3": torch.ones(1)}}, r"branch 'conv3x3' of '0' has shape \(1,\): it must be \(4, 3, 3, 3\)"),
    ],
)
def test_kernels_that_do_not_fit_are_refused(kernels, words):
    net = small_net()
    with pytest.raises(ValueError, match=words):
        csla_model(net, planned(net, {"^0$": [Conv(3)]}), kernels)


def test_kernels_drawn_for_an_earlier_weight_are_brought_up_to_date():
    net = small_net()
    plan = planned(net, {"^0$": [Conv(3), Conv(1)]})
    kernels = plan.init_()
    with torch.no_grad():
        net[0].weight.mul_(3)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(csla_model(net, plan, kernels)(x), net(x), rtol=1e-12, atol=1e-12)


def test_merging_keeps_the_memory_format():
    net = small_net().to(memory_format=torch.channels_last)
    merged = repopt.merge(csla_model(net, planned(net, {"^3$": [Conv(3), Conv(1)]})))
    assert merged[3].weight.is_contiguous(memory_format=torch.channels_last)
    volume = nn.Conv3d(2, 2, 3).to(memory_format=torch.channels_last_3d)
    merged = repopt.merge(csla_model(volume, planned(volume, {"^$": [Conv(3)]})))
    assert merged.weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("branches", [[Conv(3), Conv(1), Identity()], [Identity(), Conv(3, groups=4)]])
def test_merging_keeps_the_memory_format_also_where_no_branch_covers_the_operator(branches):
    net = nn.Conv2d(8, 8, 5, padding=2).double().to(memory_format=torch.channels_last)
    plan = planned(net, {"^$": branches})
    plan.init_()
    merged = repopt.merge(csla_model(net, plan))
    assert merged.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(merged.weight, net.weight, rtol=1e-12, atol=1e-12)


class Standardized(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


@pytest.mark.parametrize("surgery", [csla_model, search_model])
def test_an_operator_that_a_block_cannot_stand_for_is_refused(surgery):
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match="'0' shares its weight with '1', and a block would untie them"):
        surgery(tied, planned(tied, {"^0$": [repopt.Linear()]}))
    compiled = nn.Sequential(torch.compile(nn.Linear(4, 4)))
    with pytest.raises(
        ValueError, match="'0' is compiled by itself, and would go on as it is: compile the whole model"
    ):
        surgery(compiled, planned(compiled, {"^0$": [repopt.Linear()]}))
    patched = nn.Sequential(nn.Linear(4, 4))
    patched[0].forward = lambda x: x
    with pytest.raises(ValueError, match="'0' is a Linear with a forward of its own"):
        surgery(patched, planned(patched, {"^0$": [repopt.Linear()]}))
    own = nn.Sequential(Standardized(4, 4, 3))
    with pytest.raises(ValueError, match="'0' is a Standardized with a forward of its own"):
        surgery(own, planned(own, {"^0$": [Conv(3)]}))
    for looked_up in (dict, set):
        keyed = nn.Sequential(nn.Linear(4, 4))
        keyed.found = looked_up({keyed[0]: 1})
        with pytest.raises(
            ValueError, match="'0' is a key or an element of 'found', where its block would not be found"
        ):
            surgery(keyed, planned(keyed, {"^0$": [repopt.Linear()]}))
    gained = nn.Sequential(nn.Linear(4, 4))
    gained[0].gain = nn.Parameter(torch.ones(()))
    plan = planned(gained, {"^0$": [repopt.Linear()]})
    with pytest.raises(ValueError, match="'0' has a parameter of its own, 'gain', which a block would lose"):
        surgery(gained, plan)
    gained[0].gain = None
    surgery(gained, plan)


class Looping(nn.Module):
    """Finds its layers where torch does not look for them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.layers = [(self.a, torch.relu), (self.b, self.norm)]
        self.by_name = {"a": deque([self.a]), "b": self.b}
        self.hidden = (nn.Sequential(self.b, nn.ReLU()),)
        self.bound, self.called = self.a.forward, partial(torch.relu, self.b)

    def forward(self, x):
        for layer, then in self.layers:
            assert isinstance(layer, nn.Conv2d | LinearAdditionBlock)
            x = then(layer(x))
        x = self.hidden[0](self.by_name["b"](self.by_name["a"][0](x)))
        return self.called.args[0](x) * self.layers[0][0].weight.sum()


@pytest.mark.parametrize("inplace", [True, False])
def test_operators_that_are_held_elsewhere_too_become_blocks_and_come_back(inplace):
    net = Looping().double()
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    search = search_model(net, repopt.plan(net, "repvgg"), inplace=inplace)
    assert (search is net) == inplace
    expected = search(x)
    expected.sum().backward()
    assert all(param.grad is not None for param in search.parameters())
    assert inplace or all(param.grad is None for param in net.parameters())
    merged = repopt.merge(search, inplace=inplace)
    for model in (merged, copy.deepcopy(merged), pickle.loads(pickle.dumps(merged))):
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(model.bound(x), model.a(x))
        model(x).sum().backward()
        assert all(param.grad is not None for param in model.parameters())


@pytest.mark.parametrize("kind", ["method", "partial", "closure"])
def test_a_function_that_holds_on_to_an_operator_gets_its_block(kind):
    net = nn.Sequential(nn.Linear(4, 4)).double()
    operator = net[0]
    made = {"method": operator.forward, "partial": partial(checkpoint, operator, use_reentrant=False)}
    net.function = {**made, "closure": lambda x: operator(x)}[kind]
    twin = csla_model(net, planned(net, {"^0$": [repopt.Linear(), Identity()]}), inplace=True)
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(twin.function(x), twin[0](x))
    twin.function(x).sum().backward()
    assert all(param.grad is not None for param in twin.parameters())


def test_a_kept_forward_of_a_convolution_is_its_block_s():
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1)).double()
    net.function = net[0].forward
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    search = search_model(net, repopt.plan(net, "repvgg"))
    torch.testing.assert_close(search.function(x), search[0](x))
    merged = repopt.merge(search)
    torch.testing.assert_close(merged.function(x), search[0](x))


def test_who_keeps_a_layer_has_the_one_in_its_place_however_often_it_is_replaced():
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    layer, plan = net[0], planned(net, {"^0$": [repopt.Linear()]})
    for _ in range(300):
        repopt.merge(csla_model(net, plan, inplace=True), inplace=True)
    x = torch.randn(3, 2)
    assert torch.equal(layer(x), net(x))
    assert layer.weight is net[0].weight
    assert "weight" in dir(layer)
    layer.tag = 1
    del layer.tag
    assert not hasattr(net[0], "tag")
    copy.copy(layer).in_features = 7
    assert net[0].in_features == 2
    assert repr(layer) == repr(net[0])
    net.function = lambda x: layer(x)
    with pytest.raises(ValueError, match="'function' was made around the model"):
        copied(net)


class Slotted(nn.Linear):
    __slots__ = ("tag",)


def test_a_layer_that_cannot_stand_in_for_its_block_is_replaced_all_the_same():
    net = nn.Sequential(Slotted(2, 2)).double()
    plan = planned(net, {"^0$": [repopt.Linear()]})
    x = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(csla_model(net, plan, plan.init_())(x), net(x))


@pytest.mark.parametrize("kind", ["closure", "default", "forward", "in a dict"])
def test_a_function_made_around_a_model_is_not_copied(kind):
    """Not by any way to make it: the copy's would compute with the original's weights."""
    net = nn.Sequential(nn.Linear(4, 4))
    if kind == "forward":
        net.forward = torch.autocast("cpu")(net.forward)
    else:
        made = {"closure": lambda x: net[0](x), "default": lambda x, layers=(net[0],): layers[0](x)}
        net.function = made.get(kind, made)
    plan = planned(net, {"^0$": [repopt.Linear()]})
    with pytest.raises(ValueError, match="was made around the model, and a copy would go on with the original"):
        csla_model(net, plan)
    assert repopt.merge(csla_model(net, plan, inplace=True), inplace=True) is net


@pytest.mark.parametrize("compiled", ["the model", "what torch.compile returned", "a stage"])
def test_a_compiled_model_is_copied(compiled):
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    if compiled == "the model":
        net.compile(backend="eager")
    elif compiled == "a stage":
        net[0] = torch.compile(net[0], backend="eager")
    else:
        net = torch.compile(net, backend="eager")
    x = torch.randn(2, 4)
    assert torch.equal(copied(net)(x), net(x))


def test_a_block_that_is_compiled_by_itself_is_not_merged():
    """What torch.compile returned would go on with the block."""
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
    search = search_model(net, repopt.plan(net, "repvgg"))
    search[0] = torch.compile(search[0], backend="eager")
    optimizer = torch.optim.SGD(search.parameters(), lr=0.1)
    for verb in (repopt.merge, partial(repopt.freeze, optimizer=optimizer)):
        with pytest.raises(ValueError, match="'0' is compiled by itself, and would go on as it is"):
            verb(search)
    assert csla_blocks(search) == {}
    assert len(optimizer.param_groups[0]["params"]) == len(list(search.parameters()))


def test_a_model_is_copied_with_the_weights_that_hooks_compute():
    """As pruning does, in a layer that is not planned."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)).double()
    prune.l1_unstructured(net[0], "weight", 0.3)
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    plan = repopt.plan(net, "repvgg", scales="depth")
    assert plan.operators == ("1",)
    twin = repopt.csla_model(net, plan, plan.init_())
    torch.testing.assert_close(twin(x), net(x))
    (twin(x).sum()).backward()
    assert twin[0].weight_orig.grad is not None
    assert net[0].weight_orig.grad is None
    sgd = partial(torch.optim.SGD, lr=0.1)
    assert repopt.verify(net, plan, sgd, inputs=x, steps=5).worst <= 1e-12


def test_a_view_of_a_parameter_is_not_copied_as_a_constant():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.fc = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)
            self.head = self.embedding.t()

    net = Tied()
    with pytest.raises(ValueError, match="keeps a view of a parameter, which a copy would lose"):
        repopt.csla_model(net, repopt.plan(net, {"fc": [Linear()]}, scales="ones"))
