"""Runs a function on several ranks, each a process forked from one that has imported torch already."""

import torch
import torch.distributed as dist

from forked import fork


def on_ranks(work, processes, folder, *args):
    """Calls `work(*args)` on each rank of a gloo group; a group of one is this process itself."""
    store = f"file://{folder}/store"
    if processes == 1:
        _join(work, 0, 1, store, args)
        return
    ranks = [fork(_join, work, rank, processes, store, args) for rank in range(processes)]
    for rank in ranks:
        rank.join(timeout=300)
    assert [rank.exitcode for rank in ranks] == [0] * processes


def _join(work, rank, processes, store, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    try:
        work(*args)
    finally:
        dist.destroy_process_group()
