import shutil
import subprocess
from contextlib import suppress

import pytest
import torch
from PIL import Image

from made_up import small_job
from repopt import device
from repopt.device import arithmetic, commit, environment
from repopt.quantize import quantize_run
from repopt.train.prediction import predict_run
from repopt.train.runs import evaluate_run
from repopt.train.training import train_run


def flags():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark


def test_the_environment_says_where_when_and_with_what():
    found = environment("cpu")
    assert found["torch"] == torch.__version__
    assert "cores" in found["hardware"]
    assert set(found) == {"hardware", "threads", "python", "torch", "date"}


def test_a_copy_without_git_takes_its_commit_from_the_environment(monkeypatch):
    monkeypatch.setenv("REPOPT_COMMIT", "a1b2c3d")
    assert commit.__wrapped__() == "a1b2c3d"


def test_the_commit_is_that_of_the_package_s_own_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("REPOPT_COMMIT", raising=False)
    checkout, package = tmp_path / "checkout", tmp_path / "checkout" / "repopt"
    package.mkdir(parents=True)
    shutil.copy(device.__file__, package)
    monkeypatch.setattr(device, "__file__", str(package / "device.py"))

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", checkout, *who, *words], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    assert commit.__wrapped__() == ""  # inside somebody's checkout, and not part of it
    git("add", "-A")
    git("commit", "-qm", "first")
    head = git("rev-parse", "--short", "HEAD").strip()
    assert commit.__wrapped__() == head
    (checkout / "results.csv").write_text("1")
    assert commit.__wrapped__() == head
    (package / "device.py").write_text("changed")
    assert commit.__wrapped__() == f"{head}-dirty"


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_arithmetic_leaves_the_flags_of_the_process_as_they_were_also_after_an_error(precision, tf32):
    torch.set_float32_matmul_precision(precision)
    try:
        before = flags()
        with suppress(KeyError), arithmetic(tf32=tf32, benchmark=True):
            assert flags() == (tf32, tf32, True)
            raise KeyError
        assert flags() == before
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this torch is older than 2.9")
def test_arithmetic_works_where_the_flags_were_set_by_the_names_of_torch_2_9():
    conv = torch.backends.cudnn.conv
    before, conv.fp32_precision = conv.fp32_precision, "ieee"
    try:
        with arithmetic(tf32=True):
            assert torch.backends.cudnn.allow_tf32
        assert conv.fp32_precision == "ieee"
    finally:
        conv.fp32_precision = before


def test_a_run_its_evaluation_its_predictions_and_its_quantization_leave_no_flags_behind(tmp_path):
    """torch has them for the whole process: a caller's own networks would compute otherwise from then on."""
    before, run = flags(), tmp_path / "run"
    train_run(small_job(precision="tf32"), run, device="cpu", quiet=True)
    assert flags() == before
    evaluate_run(run, device="cpu")
    assert flags() == before
    Image.new("RGB", (16, 16)).save(tmp_path / "grey.png")
    predict_run(run, [tmp_path / "grey.png"], device="cpu")
    assert flags() == before
    quantize_run(run, quiet=True)
    assert flags() == before
