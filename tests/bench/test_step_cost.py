import pytest
import torch

import repopt
from repopt.bench.step_cost import measure_step


def nano_plan():
    return repopt.plan(repopt.create_model("repopt_vgg_nano"), scales="ones")


@pytest.mark.parametrize("implementation", ["fused", "foreach", "plain"])
def test_sgd_is_measured_stock_and_attached_in_one_run(implementation):
    plan = nano_plan()
    stock, ours, own = measure_step(plan, implementation=implementation, repeats=2)
    assert (stock.way, ours.way, own.way) == ("stock", "grad", "closed")
    assert stock.ratio == 1
    assert ours.ratio == pytest.approx(ours.milliseconds / stock.milliseconds)
    assert ours.queued_ratio == pytest.approx(ours.queued_milliseconds / stock.queued_milliseconds)
    weights = sum(module.weight.nbytes for module in plan.modules().values())
    assert stock.state_bytes == ours.state_bytes == weights
    assert (stock.repopt_bytes, ours.repopt_bytes) == (0, sum(plan.multiplier(name).nbytes for name in plan.operators))
    assert stock.peak_bytes is None


def test_adamw_is_measured_on_the_branch_route_and_in_closed_form():
    plan = nano_plan()
    costs = {cost.way: cost for cost in measure_step(plan, rule="adamw", repeats=2)}
    assert set(costs) == {"stock", "branch", "closed"}
    assert costs["closed"].state_bytes == costs["stock"].state_bytes
    assert costs["branch"].state_bytes > 1.1 * costs["stock"].state_bytes
    assert costs["branch"].repopt_bytes > costs["closed"].repopt_bytes > 0


@pytest.mark.parametrize(("rule", "base"), [("adam", "stock"), ("lion", "plain")])
def test_other_closed_forms_are_measured_against_theirs(rule, base):
    first, closed = measure_step(nano_plan(), rule=rule, repeats=1)
    assert (first.way, first.ratio, closed.way) == (base, 1, "closed")


def test_a_graph_needs_cuda():
    with pytest.raises(ValueError, match="only a step on CUDA can be replayed as a graph, not one on cpu"):
        measure_step(nano_plan(), graph=True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("graph", [False, True])
def test_a_step_on_cuda_counts_its_memory(graph):
    plan = repopt.plan(repopt.create_model("repopt_vgg_nano").cuda(), scales="ones")
    costs = [cost for rule in ("sgd", "adamw") for cost in measure_step(plan, rule=rule, graph=graph, repeats=2)]
    assert all(cost.peak_bytes is not None for cost in costs)
