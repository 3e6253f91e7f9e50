import torch

from distributed.torchrun import torchrun


def test_two_processes_reach_the_weights_of_one(tmp_path):
    for processes in (1, 2):
        torchrun("ddp.py", processes, tmp_path / f"{processes}.pt")
    one, two = (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-12, atol=1e-13)
