"""Closed forms: optimizers that train the imagined blocks in their own step, with one set of moments."""

from repopt.optim.adam import Adam, AdamW
from repopt.optim.closed_form import RepOptimizer
from repopt.optim.lion import Lion

__all__ = ["Adam", "AdamW", "Lion", "RepOptimizer"]
