"""Many processes: torchrun starts them, DistributedDataParallel averages their gradients, rank 0 writes.

Ranks that were started differently are refused, see `check_alike`; one that stands still is named, see `heartbeat`.
Norms use the statistics of their own rank's images, as the authors' training does; SyncBatchNorm is the user's to add.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from repopt.device import chosen_device
from repopt.plans.copying import copied
from repopt.plans.wording import first_line
from repopt.train.heartbeat import Heartbeat
from repopt.train.stopping import LostRankError

# A rank that dies closes its connections, which ends the others at once. One that is busy, compiling or writing a large
# checkpoint, must not end them.
_PATIENCE = timedelta(minutes=10)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wrap(self, model: nn.Module, device: torch.device, *, idle: bool) -> nn.Module:
        """The model whose gradients are averaged over the ranks; `idle` where it has parameters without one."""
        if self.size == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, find_unused_parameters=idle)

    def has_idle_parameters(self, model: nn.Module, size: int, channels: int) -> bool:
        """Whether some parameter takes no part in the logits, as that of an unused head; a copy of the model is asked.

        Args:
            model: as it was made: what it has computed since might not be copied.
            size: side of an image.
            channels: of an image.
        """
        if self.size == 1:
            return False
        asked = copied(model, training=True)
        params = [param for param in asked.parameters() if param.requires_grad]
        images = params[0].new_zeros(2, channels, size, size)
        with torch.random.fork_rng([images.device] if images.is_cuda else []):  # dropout draws
            logits = asked(images)
        grads = torch.autograd.grad(logits.sum(), params, allow_unused=True)
        return self.shared(lambda: any(grad is None for grad in grads))

    def share_buffers(self, model: nn.Module) -> None:
        """Gives every rank the first one's buffers: each rank's running statistics are of its own images."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def shared(self, make: Callable[[], T]) -> T:
        """What the first rank makes, on every rank; its error too, so that no rank waits in vain."""
        if self.size == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_first:
            try:
                made[0] = make()
            except Exception as error:  # every rank raises it
                made[1] = _sendable(error)
        dist.broadcast_object_list(made)
        if made[1] is not None:
            raise made[1]
        result: T = made[0]
        return result

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def check_alike(self, facts: Mapping[str, object]) -> None:
        """Raises on every rank, and names what differs, unless all have the same facts.

        Args:
            facts: by a name for the reader; all but digests short enough to be shown.
        """
        first, *others = self.gather({name: str(value) for name, value in facts.items()})
        for rank, other in enumerate(others, start=1):
            differing = [
                f"{name} ({other.get(name, 'nothing')} instead of {first.get(name, 'nothing')})"
                for name in dict.fromkeys([*first, *other])
                if other.get(name) != first.get(name)
            ]
            if differing:
                raise ValueError(
                    f"rank {rank} differs from rank 0 in {', '.join(differing)}: start every rank with the same flags, "
                    "data and versions"
                )

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on some rank."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=device)).item())


def _sendable(error: Exception) -> Exception:
    """The error, or what it says where it cannot be sent to other processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of any class at all
        return RuntimeError(f"{type(error).__name__}: {first_line(error)}")
    return error


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: str) -> Iterator[tuple[World, torch.device]]:
    """Joins the processes that torchrun started, or stays alone.

    Args:
        device: `auto`, `cpu` or `cuda`.
    """
    cuda = chosen_device(device).type == "cuda"
    size, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local_rank)
    chosen = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if size == 1:
        yield World(), chosen
        return
    dist.init_process_group("nccl" if cuda else "gloo", timeout=_PATIENCE)
    heartbeat = Heartbeat(rank=dist.get_rank(), size=size)
    try:
        heartbeat.start()
        yield World(rank=dist.get_rank(), size=size), chosen
    except RuntimeError as error:
        if not _is_about_a_rank(error):
            raise
        raise LostRankError(
            f"rank {dist.get_rank()} lost another rank, which has died or hangs ({str(error).partition('. ')[0]}): see "
            "its output, then start again with --resume"
        ) from error
    finally:
        heartbeat.stop()
        dist.destroy_process_group()


def _is_about_a_rank(error: RuntimeError) -> bool:
    """Whether a collective failed: gloo raises a plain RuntimeError, whose message begins with its source file."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).partition("]")[0]
