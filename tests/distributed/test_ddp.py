import torch

from distributed.ddp import train_half
from distributed.ranks import on_ranks


def test_two_processes_reach_the_weights_of_one(tmp_path):
    for processes in (1, 2):
        (tmp_path / str(processes)).mkdir()
        on_ranks(train_half, processes, tmp_path / str(processes), tmp_path / f"{processes}.pt")
    one, two = (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-12, atol=1e-13)
