"""Closed forms: optimizers that train the imagined blocks in their own step, with one set of moments."""

from repopt.optim.adam import Adam, AdamW
from repopt.optim.lion import Lion
from repopt.optim.rep_optimizer import RepOptimizer
from repopt.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Lion", "RepOptimizer"]
