"""Rows of a shard, on one process with a mesh of one rank; several ranks are in tests/distributed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import repopt
from repopt import Conv, Identity
from repopt.algebra.multiplier import grad_mult
from repopt.algebra.sharding import local_rows, shard_group
from repopt.optim.product import product
from repopt.verification.cases import BRANCH_SETS, mixed_sign_scales


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_plain_tensor_is_its_own_rows():
    tensor = torch.ones(3, 2)
    assert local_rows(tensor) == (tensor, None)
    assert shard_group(tensor) is None


def test_a_tensor_sharded_over_rows_knows_their_numbers(mesh):
    local, rows = local_rows(distribute_tensor(torch.ones(3, 2), mesh, [Shard(0)]))
    assert local.shape == (3, 2)
    assert rows == range(3)


def test_a_replicated_tensor_is_whole(mesh):
    tensor = distribute_tensor(torch.ones(3, 2), mesh, [Replicate()])
    assert local_rows(tensor)[1] is None
    assert shard_group(tensor) is None


def test_shards_off_the_rows_are_refused(mesh):
    with pytest.raises(ValueError, match=r"sharded once over dimension 0, as fully_shard does, not"):
        local_rows(distribute_tensor(torch.ones(3, 2), mesh, [Shard(1)]))


def test_the_branch_route_refuses_a_sharded_weight(mesh):
    net = nn.Linear(4, 4, bias=False)
    net.weight = nn.Parameter(distribute_tensor(net.weight.detach(), mesh, [Shard(0)]))
    plan = repopt.plan(net, {"^$": [repopt.Linear(), Identity()]}, scales="ones")
    with pytest.raises(ValueError, match="does not work on sharded parameters such as the weight of ''"):
        repopt.attach(torch.optim.AdamW(net.parameters()), plan)


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
@pytest.mark.parametrize("branch_set", BRANCH_SETS)
def test_the_rows_of_a_multiplier_are_rows_of_the_whole(branch_set, cut):
    """Cut anywhere, through groups and into an empty shard, two shards hold what the whole holds."""
    case = BRANCH_SETS[branch_set]
    bare = repopt.plan(case.operator(), {"^$": case.branches})
    plan = bare.with_scales(mixed_sign_scales(bare))
    block, constants = plan.blocks[""], plan.constants("")
    rows = block.operator.out_channels
    whole = grad_mult(block, constants, dtype=torch.float64)
    grad = torch.randn(block.operator.kernel_shape, dtype=torch.float64)
    norms, pieces, dense = [], [], []
    for held in (range(min(cut, rows)), range(min(cut, rows), rows)):
        part = grad_mult(block, constants, dtype=torch.float64, rows=held)
        piece = grad[held.start : held.stop].clone()
        norms.append(part.squared_norm(piece))
        dense.append(part.dense())
        pieces.append(product(piece, part))
    torch.testing.assert_close(torch.cat(dense), whole.dense())
    torch.testing.assert_close(torch.cat(pieces), grad * whole.dense())
    torch.testing.assert_close(sum(norms), (grad.square() * whole.dense()).sum())


def test_rows_sharded_and_finer_groups_take_an_index_and_count_its_bytes():
    net = nn.Conv2d(8, 8, 3, padding=1)
    bare = repopt.plan(net, {"^$": [Conv(3), Conv(1, groups=4)]})
    plan = bare.with_scales(mixed_sign_scales(bare))
    part = grad_mult(plan.blocks[""], plan.constants(""), rows=range(3, 8))
    (diagonal,) = part.diagonals
    assert diagonal.index.numel() == 5 * 2
    assert part.nbytes == part.taps.nbytes + diagonal.values.nbytes + diagonal.index.nbytes
