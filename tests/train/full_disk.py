"""A process that may write no large files."""

import resource
import signal

import torch

from repopt.train.checkpoint import save_checkpoint


def save_too_much(folder, most):
    """Saves a checkpoint of more bytes than a file may have, and writes down what is said of it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        save_checkpoint(folder, {"large": torch.ones(most)})
    except OSError as error:
        (folder / "said").write_text(str(error))
