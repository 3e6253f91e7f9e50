import shutil
import subprocess

import torch

from repopt import device
from repopt.device import commit, environment


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
