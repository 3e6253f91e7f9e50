"""A command in a process of its own, forked from this one, which has imported torch and must not have used it yet."""

import dataclasses
import hashlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

PATIENCE = 60  # seconds; a case takes about one, and more on a machine that is busy
MEMORY = 64 << 30  # bytes of addresses, of which torch alone takes several GB
CRASHED = 99


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command came to.

    Attributes:
        code: its exit code; None if it did not end in time.
        out: what it printed.
        err: what it said on stderr.
        result: a digest of its result; None where there is none.
    """

    code: int | None
    out: str
    err: str
    result: str | None


def answer(words, folder, made=None):
    """Runs `repopt WORDS` in a folder.

    Args:
        words: what is typed.
        folder: the working directory.
        made: the file in it with the result; what was printed unless given.
    """
    with tempfile.TemporaryDirectory() as logs:
        out, err = Path(logs, "out"), Path(logs, "err")
        code = forked(_main, words, folder, out, err)
        printed, said = (path.read_text(errors="replace") if path.exists() else "" for path in (out, err))
    content = printed.encode() if made is None else (folder / made).read_bytes() if (folder / made).is_file() else None
    result = hashlib.sha256(content).hexdigest() if content is not None else None
    return Answer(code=code, out=printed, err=said, result=result)


def forked(work, *args):
    """The exit code of a function in a forked process; None if it did not end in time, and was killed."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            work(*args)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else CRASHED if error.code else 0
        except BaseException:
            traceback.print_exc()
            code = CRASHED
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _main(words, folder, out, err):
    import torch

    from repopt.cli import main

    for number, path in ((1, out), (2, err)):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ["REPOPT_CACHE"] = str(folder / "cache")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    main(words)
