"""What ranks share, tried on each of two."""

import pytest
import torch.distributed as dist

from repopt.train.distributed import World


def raises_what_the_first_raised():
    def make():
        assert dist.get_rank() == 0
        raise TypeError("the first could not")

    with pytest.raises(TypeError, match=r"^the first could not$"):
        World(rank=dist.get_rank(), size=dist.get_world_size()).shared(make)
