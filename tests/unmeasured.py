"""torch's exporters run without coverage: it doubles their time, and no line of ours is in them."""

import functools
import sys

import torch


def leave_out_exporters():
    """For the rest of this process."""
    for module in (torch.export, torch.onnx):
        if not hasattr(module.export, "__wrapped__"):
            module.export = _untraced(module.export)


def _untraced(function):
    @functools.wraps(function)
    def call(*args, **options):
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*args, **options)
        finally:
            sys.settrace(trace)

    return call
