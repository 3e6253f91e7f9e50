"""A sharded parameter's local rows.

FSDP2 shards a kernel over its output channels: row r of a rank's shard is output channel first + r. repopt treats
a kernel row by row, so a rank needs only its own rows and their numbers.
"""

import math
import sys
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is distributed; whoever has such a tensor has imported its module, which is slow to import."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_rows(tensor: Tensor) -> tuple[Tensor, range | None]:
    """The part of a tensor that this rank holds, and which rows these are; None for a tensor that is not distributed.

    Raises:
        ValueError: the tensor is not sharded over its first dimension alone.
    """
    if not is_sharded(tensor):
        return tensor, None
    with torch.no_grad():
        local = tensor.to_local()
    dim = _shard_dim(tensor)
    if dim is None:
        return local, None
    chunk = math.ceil(tensor.shape[0] / tensor.device_mesh.size(dim))
    first = min(tensor.device_mesh.get_local_rank(dim) * chunk, tensor.shape[0])
    return local, range(first, first + local.shape[0])


def write_rows_(tensor: Tensor, whole: Tensor) -> None:
    """Fills the part of a tensor that this rank holds."""
    local, rows = local_rows(tensor)
    local.copy_(whole if rows is None else whole[rows.start : rows.stop])


def like_shard(tensor: Tensor, local: Tensor) -> Tensor:
    """Rows held here as a tensor that is distributed as another one is."""
    if not is_sharded(tensor):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def shard_group(tensor: Tensor) -> "ProcessGroup | None":
    """The ranks over which a tensor's rows are sharded; None where every rank holds all of them."""
    if not is_sharded(tensor):
        return None
    dim = _shard_dim(tensor)
    return None if dim is None else tensor.device_mesh.get_group(dim)


def _shard_dim(tensor: "DTensor") -> int | None:
    from torch.distributed.tensor import Replicate, Shard

    dims = [dim for dim, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    if not dims:
        return None
    placement = tensor.placements[dims[0]]
    if len(dims) > 1 or type(placement) is not Shard or placement.dim != 0:
        raise ValueError(
            f"repopt takes parameters that are whole or sharded once over dimension 0, as fully_shard does, not "
            f"{tensor.placements}"
        )
    return dims[0]
