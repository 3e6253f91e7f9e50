"""Spreading and merging in one launch each are torch's own operations, block after block.

On a GPU; elsewhere in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/optim/test_spreading_kernel.py
"""

import copy
import os
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity
from repopt.optim import block_kernels
from repopt.optim.block_kernels import BlockKernels, BlocksOneByOne, in_sets
from repopt.surgery.conversion import csla_model
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales

pytest.importorskip("triton")

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = pytest.mark.skipif(
    not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="no CUDA device, and TRITON_INTERPRET is not 1"
)
LAYOUTS = {"contiguous": {}, "channels last": {4: torch.channels_last, 5: torch.channels_last_3d}}
on_a_gpu = [pytest.mark.cuda, pytest.mark.skipif(not HAS_GPU, reason="no CUDA device on this machine")]


@pytest.fixture(autouse=True)
def kernels_are_taken(monkeypatch):
    """On this machine, whatever it is; of tensors on the device alone."""
    monkeypatch.setattr(block_kernels, "takes_kernels", lambda tensor: tensor.device.type == DEVICE)


def laid_out(module, layout):
    for param in module.parameters():
        param.data = param.data.contiguous(memory_format=layout.get(param.ndim, torch.contiguous_format))
    return module


class Both:
    """The blocks of some operators twice, with kernels of the same values."""

    def __init__(self, cases, dtype=torch.float64, layout=None):
        self.weights, plans = [], []
        for operator, branches in cases:
            module = laid_out(operator.to(DEVICE, dtype), layout or {})
            bare = repopt.plan(module, {"^$": branches})
            plans.append(bare.with_scales(mixed_sign_scales(bare)))
            self.weights.append(module.weight.detach())
        self.ours = [self._blocks(plan, weight) for plan, weight in zip(plans, self.weights, strict=True)]
        self.theirs = [self._blocks(plan, weight) for plan, weight in zip(plans, self.weights, strict=True)]
        self.at_once = block_kernels._at_once(self.ours, self.weights)
        self.one_by_one = BlocksOneByOne(self.theirs)

    def _blocks(self, plan, weight):
        blocks = BlockKernels(plan, "", {})
        draw = torch.Generator().manual_seed(0)
        shapes = {branch: placed.kernel_shape for branch, placed in plan.blocks[""].branches.items()}
        blocks.start(weight, {branch: torch.randn(shape, generator=draw) for branch, shape in shapes.items()})
        return blocks

    def grads(self):
        return [torch.randn_like(weight) for weight in self.weights]

    @torch.no_grad()
    def check_spread(self, grads):
        self.at_once.spread(grads)
        self.one_by_one.spread(grads)
        for ours, theirs in zip(self.ours, self.theirs, strict=True):
            for branch, kernel in ours.kernels.items():
                expected = theirs.kernels[branch].grad
                assert (kernel.grad is None) == (expected is None)
                if expected is not None:
                    assert kernel.grad.stride() == kernel.stride()
                    torch.testing.assert_close(kernel.grad, expected)

    @torch.no_grad()
    def check_merge(self, targets, expected):
        self.at_once.merge_into_(targets)
        self.one_by_one.merge_into_(expected)
        for ours, theirs in zip(targets, expected, strict=True):
            if ours is not None:
                # torch rounds after every branch, which shows in half precision; the kernel rounds once
                half = {"rtol": 0.02, "atol": 0.03} if ours.dtype == torch.bfloat16 else {}
                torch.testing.assert_close(ours, theirs, **half)


def copies(tensors):
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_branch_set_in_one_launch(layout, dtype):
    both = Both([(case.operator(), case.branches) for case in BRANCH_SETS.values()], dtype, LAYOUTS[layout])
    both.check_spread(both.grads())
    both.check_merge(copies(both.weights), copies(both.weights))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_longer_and_shorter_than_a_program(layout):
    sizes = [(1, 1), (3, 5), (40, 40), (130, 1)]
    both = Both(
        [(nn.Conv2d(i, o, 3, padding=1, bias=False), [Conv(3), Conv(1), Identity()]) for i, o in sizes],
        layout=LAYOUTS[layout],
    )
    both.check_spread(both.grads())
    both.check_merge(copies(both.weights), copies(both.weights))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_branches_that_most_programs_do_not_reach(layout):
    wide = nn.Conv2d(600, 4, 3, padding=1, bias=False)
    grouped = nn.Conv2d(600, 8, 3, padding=1, groups=2, bias=False)
    cases = [
        (wide, [Conv(3), Conv(1), Conv(1, groups=4)]),
        (grouped, [Conv(1), Conv(1, groups=8), Conv(3, groups=4)]),
        (nn.Conv2d(45, 45, 5, padding=2, bias=False), [Conv(5), Conv(3), Conv(1), Identity()]),
    ]
    both = Both(cases, layout=LAYOUTS[layout])
    both.check_spread(both.grads())
    both.check_merge(copies(both.weights), copies(both.weights))


def test_gradients_of_another_layout_at_odd_addresses_and_none_at_all():
    operators = [nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(4)]
    both = Both([(operator, [Conv(3), Conv(1), Identity()]) for operator in operators])
    first, second, _, fourth = both.grads()
    odd = torch.randn(second.numel() + 1, dtype=second.dtype, device=DEVICE)[1:].view_as(second)
    both.check_spread(
        [first.contiguous(memory_format=torch.channels_last), odd, None, fourth[:, :, :1].expand(6, 6, 3, 3)]
    )
    both.check_spread(both.grads())
    targets = copies(both.weights)
    odd = torch.empty(second.numel() + 1, dtype=second.dtype, device=DEVICE)[1:].view_as(second)
    both.check_merge([targets[0], odd, None, targets[3]], [*copies(both.weights[:2]), None, both.weights[3].clone()])
    torch.testing.assert_close(targets[2], both.weights[2])


def test_a_write_by_the_kernel_is_counted():
    both = Both([(nn.Conv2d(6, 6, 3, padding=1, bias=False), [Conv(3), Conv(1)])])
    target = both.weights[0].clone()
    before = target._version
    both.at_once.merge_into_([target])
    assert target._version > before


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 9, 64, 4608, 2**20 + 7, 2**31 - 1])
def test_a_product_and_a_shift_divide(divisor):
    from repopt.optim.kernels.dividing import divider

    factor, shift = divider(divisor)
    assert -(2**31) <= factor < 2**31
    for number in (0, 1, divisor - 1, divisor, 2**31 // divisor * divisor - 1, 2**31 - 1):
        assert ((number * (factor % 2**32) >> 32) + number) >> shift == number // divisor


def twins(layout=torch.contiguous_format, device=DEVICE):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
    )
    net = net.to(device).double().to(memory_format=layout)
    bare = repopt.plan(net, {"0": [Conv(3), Conv(1)], "2": [Conv(3), Conv(1), Conv(3, groups=4), Identity()]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    return net, plan, csla_model(net, plan, plan.init_())


def batch():
    return torch.randn(4, 3, 8, 8, device=DEVICE, dtype=torch.float64)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.1, **options)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def apart(net, twin):
    x = batch()
    return ((net(x) - twin(x)).abs().max() / twin(x).abs().max()).item()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("fused", [False, True])
def test_trained_so_the_operators_stay_the_blocks(layout, fused):
    net, plan, twin = twins(layout)
    ours, theirs = adamw(net, fused=fused), adamw(twin)
    repopt.attach(ours, plan)
    for number in range(8):
        x = batch()
        step(twin, theirs, x)
        step(net, ours, x)
        if number == 3:  # a write from outside, which both follow
            with torch.no_grad():
                net[2].weight.mul_(0.5)
                for kernel in twin[2].kernels.values():
                    kernel.mul_(0.5)
    assert apart(net, twin) <= 1e-12


def test_a_layout_that_changes_after_attach():
    net, plan, twin = twins()
    ours, theirs = adamw(net), adamw(twin)
    repopt.attach(ours, plan)
    for layout in (torch.contiguous_format, torch.channels_last):
        net.to(memory_format=layout)
        for _ in range(3):
            x = batch()
            step(net, ours, x)
            step(twin, theirs, x)
    assert apart(net, twin) <= 1e-12


def check_equal_to_the_block(make):
    net, plan, twin = twins()
    ours, theirs = make(net.parameters()), make(twin.parameters())
    repopt.attach(ours, plan)
    for _ in range(5):
        x = batch()
        step(net, ours, x)
        step(twin, theirs, x)
    assert apart(net, twin) <= 1e-12


def test_a_rule_that_assigns_to_data():
    class Assigning(torch.optim.Optimizer):
        def step(self, closure=None):
            for param in self.param_groups[0]["params"]:
                param.data = param.data - 0.05 * param.grad.data

    check_equal_to_the_block(lambda params: Assigning(params, {}))


def test_a_rule_that_keeps_gradients():
    class Heavy(torch.optim.Optimizer):
        """Steps on the difference to the last gradient, which it keeps itself or as a view."""

        @torch.no_grad()
        def step(self, closure=None):
            for number, param in enumerate(self.param_groups[0]["params"]):
                last = self.state[param].get("last", torch.zeros_like(param))
                param.sub_(0.05 * param.grad - 0.01 * last.view_as(param))
                self.state[param]["last"] = param.grad if number % 2 else param.grad.flatten()

    check_equal_to_the_block(lambda params: Heavy(params, {}))


def test_other_layouts_go_block_by_block():
    odd = torch.zeros(6, 6, 3, 3, device=DEVICE).transpose(0, 1)
    case = BRANCH_SETS["RepVGG"]
    plan = repopt.plan(case.operator().to(DEVICE), {"^$": case.branches}, scales="ones")
    block = BlockKernels(plan, "", {})
    block.start(odd, None)
    (only,) = in_sets({"": block}, {"": odd})
    assert isinstance(only._sums, BlocksOneByOne)


@contextmanager
def no_waiting():
    """Raises where the host waits for the device; setting the mode warns that torch does not see every wait."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_a_gpu)])
class TestOnAGpu:
    def test_no_step_waits_for_the_device(self, device):
        net, plan, _ = twins()
        ours = adamw(net, fused=True)
        repopt.attach(ours, plan)
        x = batch()
        step(net, ours, x)
        with no_waiting():
            for _ in range(3):
                step(net, ours, x)
                held = [torch.empty_like(param) for param in net.parameters()]  # so the next gradients lie elsewhere
            del held

    def test_weights_on_two_devices(self, device):
        pairs = []
        for place in ("cpu", device):
            torch.manual_seed(0)
            pairs.append(twins(device=place))
        both, bothtwins = (
            nn.ModuleList(models) for models in zip(*((net, twin) for net, _, twin in pairs), strict=True)
        )
        bare = repopt.plan(
            both, {r"\d\.0": [Conv(3), Conv(1)], r"\d\.2": [Conv(3), Conv(1), Conv(3, groups=4), Identity()]}
        )
        scales = {f"{i}.{name}": own for i, (_, plan, _) in enumerate(pairs) for name, own in plan.scales.items()}
        ours, theirs = adamw(both), adamw(bothtwins)
        repopt.attach(ours, bare.with_scales(scales))
        for _ in range(5):
            x = batch()
            for models, optimizer in ((both, ours), (bothtwins, theirs)):
                optimizer.zero_grad()
                for model, own in zip(models, (x.cpu(), x), strict=True):
                    model(own).square().mean().backward()
                optimizer.step()
        assert apart(both[1], bothtwins[1]) <= 1e-12
        x = batch().cpu()
        torch.testing.assert_close(both[0](x), bothtwins[0](x), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("set_to_none", [False, True])
    def test_two_graphs_of_one_optimizer_and_eager_steps_in_between(self, device, set_to_none):
        """Each graph reads its own addresses, and an eager step has others."""
        net, plan, twin = twins()
        x = batch()
        steps = []
        for model in (net, twin):
            optimizer = adamw(model, fused=True, capturable=True)
            if model is net:
                repopt.attach(optimizer, plan)

            def one(model=model, optimizer=optimizer):
                optimizer.zero_grad(set_to_none=set_to_none)
                model(x).square().mean().backward()
                optimizer.step()

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    one()
            torch.cuda.current_stream().wait_stream(side)
            graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
            for graph in graphs:
                optimizer.zero_grad(set_to_none=set_to_none)
                with torch.cuda.graph(graph):
                    one()
            steps.append((graphs, one))
        for number in range(12):
            x.copy_(batch())
            for graphs, one in steps:
                one() if number % 3 == 2 else graphs[number % 3].replay()
        torch.cuda.synchronize()
        assert apart(net, twin) <= 1e-4  # a step count on the device is a float32

    def test_a_graph_goes_on_after_other_tables_were_made(self, device):
        """A replay reads the tables of its capture, also when eager steps no longer do."""
        net, plan, _ = twins()
        other = copy.deepcopy(net)
        pairs = [(model, adamw(model, fused=True, capturable=True)) for model in (net, other)]
        for model, optimizer in pairs:
            repopt.attach(optimizer, plan.on(model))
            for param in model.parameters():
                param.grad = torch.ones_like(param)
            for _ in range(2):
                optimizer.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pairs[0][1].step()
        weight = net[0].weight
        held, weight.data = weight.data, weight.data.clone()
        for _, optimizer in pairs:
            optimizer.step()  # tables for the other address
        weight.data = held.copy_(weight.data)
        clutter = [torch.randint(2**40, (size,), device=device) for size in range(2, 4096, 7)]
        graph.replay()
        pairs[1][1].step()
        torch.cuda.synchronize()
        del clutter
        for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)

    def test_memory_comes_back_after_a_step(self, device):
        net = nn.Conv2d(256, 256, 3, padding=1, bias=False, device=device)
        plan = repopt.plan(net, {"^$": [Conv(3), Conv(1), Identity()]}, scales="ones")
        plan.init_()
        ours = adamw(net, fused=True)
        repopt.attach(ours, plan)
        net.weight.grad = torch.ones_like(net.weight)
        ours.step()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ours.step()
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.max_memory_allocated() - before <= 1.2 * net.weight.nbytes
