import subprocess
import sys

import pytest
import torch

OVERLAPPING = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]])


def test_torchvisions_operators_compute_on_the_cpu():
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed")
    assert ops.nms(OVERLAPPING, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist() == [1, 2]
    ramp = torch.arange(32.0).view(1, 1, 1, 32).expand(1, 1, 32, 32)
    pooled = ops.roi_align(ramp, [OVERLAPPING[2:]], output_size=1, aligned=True)
    torch.testing.assert_close(pooled, torch.full((1, 1, 1, 1), 24.5))


def test_without_a_compiler_the_tests_that_need_torchvision_are_skipped_in_words(tmp_path):
    """As a run of pytest with an empty PATH reports it."""
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    if torch.version.cuda:
        pytest.skip("beside a CUDA build of torch no stand-ins are needed")
    arguments = ["-q", "-rs", "-p", "no:cacheprovider", f"{__file__}::test_torchvisions_operators_compute_on_the_cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 skipped" in done.stdout
    assert "there is no C compiler" in done.stdout
