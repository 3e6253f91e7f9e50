"""Another process at work in the same workshop, which can be killed."""

import time

import torch

from forked import event, fork
from made_up import QUICK, squares
from paper.commands import main
from paper.tables import reproduce
from paper.workshop import Workshop


class Elsewhere:
    """A function of this module, at work in a process of its own.

    Args:
        work: the function; its last argument is an event that it sets once it has begun.
        args: its other arguments.
    """

    def __init__(self, work, *args):
        self._begun = event()
        self._process = fork(work, *args, self._begun, killed=True)

    def wait_for_begin(self):
        assert self._begun.wait(60)

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition():
            assert self._process.is_alive() or condition()
            assert time.monotonic() < end
            time.sleep(0.002)

    def wait(self):
        self._process.join(60)
        assert self._process.exitcode == 0

    def kill(self):
        """By SIGKILL; the process must have been alive."""
        assert self._process.is_alive()
        self._process.kill()
        self._process.join(60)


def hold(folder, name, begun):
    """Holds a name until the process is killed."""
    with Workshop(folder=folder).claim(name) as mine:
        assert mine
        begun.set()
        time.sleep(600)


def hold_and_leave(folder, name, file, begun):
    """Holds a name for a moment, and makes a file at the end of it."""
    with Workshop(folder=folder).claim(name) as mine:
        assert mine
        begun.set()
        time.sleep(0.3)
        file.touch()


def hold_device(folder, how, file, begun):
    """Holds the device, `alone` or `sharing`, and writes down that it did."""
    begun.set()
    with getattr(Workshop(folder=folder), how)(), file.open("a") as order:
        order.write(f"{how}\n")


def train(folder, job, weights, begun):
    """Runs a job."""
    torch.set_num_threads(1)
    begun.set()
    Workshop(folder=folder, device="cpu").run(job, weights=weights)


def stay_at_a_square(folder, path, number, begun):
    """Measures one row of the table of squares until the process is killed."""

    def stay(_):
        begun.set()
        time.sleep(600)

    table = squares(stay)
    reproduce(table, QUICK, Workshop(folder=folder), path, f"{number},*")


def make_table(words, begun):
    """`python -m paper`, with these words."""
    torch.set_num_threads(1)
    begun.set()
    main([*map(str, words)])
