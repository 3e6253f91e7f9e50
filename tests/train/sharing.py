"""What ranks share, tried on each of two."""

import pytest
import torch.distributed as dist

from repopt.train.distributed import World


class UnsendableError(Exception):
    def __init__(self, *, why):
        super().__init__(why)


def raises_what_the_first_raised():
    world = World(rank=dist.get_rank(), size=dist.get_world_size())

    def make(error):
        assert world.is_first
        raise error

    with pytest.raises(TypeError, match=r"^the first could not$"):
        world.shared(lambda: make(TypeError("the first could not")))
    with pytest.raises(RuntimeError, match=r"^UnsendableError: the first could not$"):
        world.shared(lambda: make(UnsendableError(why="the first could not")))
