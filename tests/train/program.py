"""The real program, each time in a process of its own that can be killed.

The processes are forked from one that has imported torch, see `forked`.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from forked import fork

TINY = ["--data", "fake:128,4,16", "--recipe", "demo", "--batch-size", "32", "--epochs", "3", "--eval-every", "1"]
# what a run measures of its machine: no two runs agree on it
MEASURED = ("images_per_second", "seconds")


class Program:
    """`repopt ARGS`, started.

    Args:
        args: the program's.
        log: file for both its outputs.
        errors: file for its errors, where they are wanted apart.
        env: more variables.
        cwd: folder to run in.
        prepare: function to call first, in the new process.
        killed: whether SIGKILL is to be sent.
    """

    def __init__(self, *args, log, errors=None, env=None, cwd=None, prepare=None, killed=False):
        self.log = Path(log)
        where = (str(log), str(errors or log), env or {}, cwd)
        self._process = fork(_main, [str(arg) for arg in args], *where, prepare, killed=killed)
        self.pid = self._process.pid

    def send(self, number):
        """Sends a signal, and says whether the program was still there."""
        alive = self._process.is_alive()
        if alive:
            os.kill(self.pid, number)
        return alive

    def wait(self, timeout=120):
        """The exit code, negative for a signal that killed it."""
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            raise AssertionError(f"the program did not end in {timeout} s:\n{self.said}")
        return self._process.exitcode

    def wait_for(self, condition, timeout=60):
        """Waits until something holds; fails if the program ends before it does."""
        end = time.monotonic() + timeout
        while not condition():
            assert self._process.is_alive() or condition(), self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.002)

    @property
    def said(self):
        return self.log.read_text() if self.log.exists() else ""


def run(*args, log, env=None):
    """The exit code of the program and what it said."""
    program = Program(*args, log=log, env=env)
    return program.wait(), program.said


def heard(*args, cwd=None, env=None, prepare=None):
    """The exit code of the program, and what it said on either output, apart."""
    with tempfile.TemporaryDirectory() as logs:
        out, err = Path(logs, "out"), Path(logs, "err")
        code = Program(*args, log=out, errors=err, env=env, cwd=cwd, prepare=prepare).wait(300)
        return SimpleNamespace(returncode=code, stdout=out.read_text(), stderr=err.read_text())


def finished(*args, out):
    """The folder of a run that went well."""
    code, said = run(*args, "--out", out, log=out.with_suffix(".log"))
    assert code == 0, said
    return out


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def metrics(folder):
    """The recorded epochs, without what is measured."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in MEASURED} for record in records]


def _main(args, log, errors, env, cwd, prepare):
    import torch

    from repopt.cli import main

    os.setsid()
    for number, path in ((1, log), (2, errors)):
        with open(path, "a") as file:
            os.dup2(file.fileno(), number)
    if cwd is not None:
        os.chdir(cwd)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ.update(env)
    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    sys.argv[1:] = args
    main()
