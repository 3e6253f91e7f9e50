"""A repopt that is slightly wrong, or lacks an extra, for a process of its own."""

import dataclasses
import sys

import repopt.plans.planning


def break_the_multiplier():
    """Makes every multiplier one part in a million too large."""
    right = repopt.plans.planning.grad_mult

    def wrong(*args, **options):
        made = right(*args, **options)
        return dataclasses.replace(made, taps=made.taps * (1 + 1e-6))

    repopt.plans.planning.grad_mult = wrong


def without_int8():
    """As `make demo` installs it: nothing is exported and calibrated."""
    sys.modules.update(onnxruntime=None, torchao=None)
