"""Processes of their own for tests, forked from one that has imported what they need: tenths of a second, not five.

A process has one fork server, and the last list of imports would win: so there is one list, for all tests.
"""

import multiprocessing
import os
import posix
import sys

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("repopt.cli.train", "repopt.cli.search", "repopt.verification.cases", "repopt.report"),
        *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"),  # torch.optim imports the first
        *("torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_svg"),
    ]
)


def leave_coverage():
    """Keeps a process that may be killed from writing coverage's data: a kill would leave half a file of it."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is not None:
        current.stop()
        os._exit = posix._exit  # coverage's own saves first
