"""Processes of their own for tests, forked from one that has imported what they need: tenths of a second, not five.

A test session has one fork server, and of several lists of imports the last would win: so there is one list, for all.

The server measures no coverage. It would write its data when the session ends, while the data of all processes are
combined, and half a file would be read. A process that it forks measures coverage itself, unless it is to be killed: a
kill would leave half a file, too.
"""

import multiprocessing
import os
from contextlib import contextmanager

_MEASURED = "COVERAGE_PROCESS_CONFIG"  # set by coverage for the processes that are to be measured

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *("repopt.cli.train", "repopt.cli.search", "repopt.verification.cases", "repopt.report", "paper.tables"),
        *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"),  # torch.optim imports the first
        *("torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_svg"),
        *("coverage", "unmeasured"),
    ]
)


def fork(work, *args, killed=False):
    """Starts a function of a module in a process of its own.

    Args:
        work: the function.
        args: its arguments.
        killed: whether the process is to be killed.
    """
    with _unmeasured() as config:
        process = _context.Process(target=_run, args=(None if killed else config, work, args), daemon=killed)
        process.start()
    return process


def event():
    """An event that such processes share."""
    with _unmeasured():
        return _context.Event()


@contextmanager
def _unmeasured():
    """What is started within, the server too, measures no coverage; gives what it would be measured by."""
    config = os.environ.pop(_MEASURED, None)
    try:
        yield config
    finally:
        if config is not None:
            os.environ[_MEASURED] = config


def _run(config, work, args):
    if config is not None:
        import coverage

        from unmeasured import leave_out_exporters

        os.environ[_MEASURED] = config
        coverage.process_startup()
        leave_out_exporters()
    work(*args)
