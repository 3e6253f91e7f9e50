import torch

from distributed.ddp import freeze_half, train_half
from distributed.ranks import on_ranks


def by_one_and_by_two(work, tmp_path):
    for processes in (1, 2):
        (tmp_path / str(processes)).mkdir()
        on_ranks(work, processes, tmp_path / str(processes), tmp_path / f"{processes}.pt")
    return (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))


def test_two_processes_reach_the_weights_of_one(tmp_path):
    one, two = by_one_and_by_two(train_half, tmp_path)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-12, atol=1e-13)


def test_frozen_on_two_processes_the_plain_model_is_the_search_model_with_fixed_scales(tmp_path):
    """The model inside DistributedDataParallel is frozen, and wrapped anew."""
    one, two = by_one_and_by_two(freeze_half, tmp_path)
    for name, weight in one["fixed"].items():
        for found in (one["plain"], two["fixed"], two["plain"]):
            torch.testing.assert_close(found[name], weight, rtol=1e-12, atol=1e-13)
