"""Ranks that stand still or are asked to stop, in processes of their own."""

import os
import signal
import sys
import time

import torch

from interrupted import interrupt_in
from repopt.train import heartbeat
from repopt.train.distributed import joined


def beat_fast():
    """Ranks are named within seconds."""
    heartbeat.EVERY, heartbeat.STILL = 0.1, 3.0


def ask_the_second_to_stop():
    """The second rank gets SIGTERM in its first step."""
    if os.environ["RANK"] == "1":
        interrupt_in("train_on", signal.SIGTERM)


def come_late(log, env):
    """The second rank keeps the first one waiting until that is said."""
    os.environ.update(env)
    heartbeat.EVERY, heartbeat.STILL = 0.1, 0.5
    with joined("cpu") as (world, _), log.open("a", buffering=1) as file:
        sys.stderr = file
        world.sum(torch.ones(1))
        end = time.monotonic() + 60
        while not world.is_first and "waiting" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.01)
        world.sum(torch.ones(1))
        sys.stderr = sys.__stderr__
