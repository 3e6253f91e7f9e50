import pytest
import torch

from distributed.fsdp import run_all
from distributed.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="fully_shard of this torch does not work on a CPU"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What one process wrote, and what two sharded ones did."""
    found = {}
    for processes in (1, 2):
        found[processes] = tmp_path_factory.mktemp(f"{processes}-processes")
        on_ranks(run_all, processes, found[processes], found[processes])
    return found


def load(folder, name):
    return torch.load(folder / f"{name}.pt", weights_only=True)


@pytest.mark.parametrize("way", ["grad", "closed", "foreach", "lion"])
def test_two_sharded_processes_reach_the_weights_of_one_and_clip_by_the_same_norm(folders, way):
    one, two = load(folders[1], way), load(folders[2], way)
    torch.testing.assert_close(two["norms"], one["norms"], rtol=1e-12, atol=0)
    assert (one["norms"] > 0.05).all()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("way", ["grad", "closed"])
def test_a_distributed_checkpoint_continues_to_the_last_bit(folders, way):
    whole, resumed = load(folders[2], way), load(folders[2], f"{way}-resumed")
    assert all(torch.equal(resumed["weights"][name], weight) for name, weight in whole["weights"].items())
