import subprocess
import sys
from pathlib import Path

import torch


def train(processes, out):
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            str(Path(__file__).with_name("ddp.py")),
            str(out),
        ],
        check=True,
        timeout=300,
        capture_output=True,
    )
    return torch.load(out, weights_only=True)


def test_two_processes_reach_the_weights_of_one(tmp_path):
    one, two = (train(processes, tmp_path / f"{processes}.pt") for processes in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-12, atol=1e-13)
