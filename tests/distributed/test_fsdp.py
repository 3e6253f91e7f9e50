import pytest
import torch

from distributed.torchrun import torchrun


@pytest.mark.parametrize("way", ["grad", "closed", "foreach", "lion"])
def test_two_sharded_processes_reach_the_weights_of_one_and_clip_by_the_same_norm(tmp_path, way):
    for processes in (1, 2):
        torchrun("fsdp.py", processes, way, tmp_path / f"{processes}.pt")
    one, two = (torch.load(tmp_path / f"{processes}.pt", weights_only=True) for processes in (1, 2))
    torch.testing.assert_close(two["norms"], one["norms"], rtol=1e-12, atol=0)
    assert (one["norms"] > 0.05).all()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", ["grad", "closed"])
def test_a_distributed_checkpoint_continues_to_the_last_bit(tmp_path, way):
    torchrun("fsdp.py", 2, way, tmp_path / "whole.pt")
    torchrun("fsdp.py", 2, way, tmp_path / "resumed.pt", tmp_path / "checkpoint")
    whole, resumed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "resumed.pt"))
    assert all(torch.equal(resumed["weights"][name], weight) for name, weight in whole["weights"].items())
