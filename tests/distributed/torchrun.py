"""Runs a script of this folder under torchrun."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def torchrun(script, processes, *args):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            str(HERE / script),
            *map(str, args),
        ],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
